#!/usr/bin/env bash
# Makes the local base image that tests/container builds on, from Debian's packages alone, so that the tests
# need no image registry. Quick when the image is there and made from the same inputs.
#
#   tests/support/base_image.sh [NAME] [SUITE]        default: trainshed-test-base bookworm
#
# DEBIAN_MIRROR: another mirror for debootstrap. SSL_CERT_FILE or PIP_CERT: a CA bundle of this machine (a network
# that opens TLS has one) goes into the image under /etc/trainshed-test, and only into this image.
set -euo pipefail

name=${1:-${TRAINSHED_TEST_BASE:-trainshed-test-base}}
suite=${2:-${TRAINSHED_TEST_SUITE:-bookworm}}
packages="ca-certificates,python3,python3-pip,python3-venv"
label=org.trainshed.test.inputs
ca_inside=/etc/trainshed-test/ca.crt
ca=${PIP_CERT:-${SSL_CERT_FILE:-}}

say() { echo "base_image.sh: $*" >&2; }
fail() { say "$*"; exit 1; }

[ -z "$ca" ] || [ -r "$ca" ] || fail "the CA bundle $ca (PIP_CERT or SSL_CERT_FILE) cannot be read; unset the variable or mend the path"

inputs=$({ cat "${BASH_SOURCE[0]}"; echo "$suite"; [ -z "$ca" ] || cat "$ca"; } | sha256sum | cut -c1-16)
have=$(docker image inspect --format "{{index .Config.Labels \"$label\"}}" "$name" 2>/dev/null || true)
if [ "$have" = "$inputs" ]; then
    say "$name is up to date"
    exit 0
fi

[ "$(id -u)" = 0 ] || fail "debootstrap needs root: run this script with sudo once; the image stays"
debootstrap=$(PATH=$PATH:/usr/sbin command -v debootstrap) || fail "debootstrap is missing: apt-get install debootstrap"

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root

say "debootstrap $suite (a minute or two)"
mirror=(${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"})
"$debootstrap" --variant=minbase --include="$packages" "$suite" "$root" "${mirror[@]}" >"$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; fail "debootstrap failed; its last lines are above"; }

# The shape of a python:*-slim image: `python` beside `python3`, and a pip that may install.
ln -sf python3 "$root/usr/bin/python"
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/*.log \
    "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/*

changes=(--change 'CMD ["bash"]' --change "LABEL $label=$inputs" --change 'ENV LANG=C.UTF-8')
if [ -n "$ca" ]; then
    install -D -m 0644 "$ca" "$root$ca_inside"
    changes+=(--change "ENV PIP_CERT=$ca_inside" --change "ENV SSL_CERT_FILE=$ca_inside")
fi

tar -C "$root" --one-file-system --numeric-owner -c . | docker import "${changes[@]}" - "$name" >/dev/null
say "made $name: $(docker image inspect --format '{{.Size}}' "$name" | awk '{ printf "%.0f MB", $1 / 1e6 }')"
