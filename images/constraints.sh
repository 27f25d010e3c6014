#!/usr/bin/env bash
# Resolves images/requirements.txt anew and writes the pins of one flavour, with the hashes of all their files (nothing is
# installed; it needs uv: pip install uv):
#
#   images/constraints.sh cpu|gpu|xla             new versions
#   KEEP=1 images/constraints.sh cpu|gpu|xla      the versions that are pinned now, with the hashes of today
#
# The pins must be the same for every Python that images are built on: PYTHONS. TORCH_VERSION means what it means to the
# Dockerfiles; the index is uv's own (UV_DEFAULT_INDEX).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

flavour=${1:-}
case $flavour in
cpu | gpu) pythons=${PYTHONS:-3.11 3.12 3.13} ;;
xla) pythons=${PYTHONS:-3.11 3.12} TORCH_VERSION=${TORCH_VERSION:-2.9.0} xla=${TORCH_XLA_VERSION:-2.9.0} ;;
*) echo "usage: images/constraints.sh cpu|gpu|xla" >&2; exit 2 ;;
esac
torch=${TORCH_VERSION:-2.13.0}

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
printf '%s\n' "torch==$torch" ${xla:+"torch_xla[tpu]==$xla"} >"$made/torch.in"
[ "${KEEP:-0}" != 1 ] || kept="--constraint $flavour/constraints.txt"
for python in $pythons; do
    # shellcheck disable=SC2086 # two words
    ${UV:-uv} pip compile --quiet --generate-hashes --no-header --no-annotate --python-version "$python" \
        --python-platform x86_64-manylinux_2_36 --no-emit-package torch ${kept:-} \
        requirements.txt "$made/torch.in" --output-file "$made/$python"
    cmp "$made/$python" "$made/${pythons%% *}" || { echo "Python $python needs other pins than ${pythons%% *}" >&2; exit 1; }
done
{
    echo "# Pins of the $flavour image, resolved for torch $torch on Python ${pythons// /, } (x86_64), with hashes."
    echo "# Made by: images/constraints.sh $flavour      (torch itself is pinned by the build argument TORCH_VERSION)"
    # The index has torch's CUDA build alone, of which the cpu flavour needs no part.
    awk -v flavour="$flavour" '/^[a-z]/ { left_out = flavour == "cpu" && /^(nvidia-|cuda-|triton)/ } !left_out' "$made/${pythons%% *}"
} >"$made/pins"
cp "$made/pins" "$flavour/constraints.txt"
echo "images/$flavour/constraints.txt: $(grep -c == "$flavour/constraints.txt") pins"
