#!/bin/sh
# Libraries of ready programs, run at build in a stage of its own: what extras of trainshed name, into /opt/venv.
#
#   extras.sh PYPROJECT "EXTRA,EXTRA"        does nothing without extras
#
# What the image has already stays as it is: an extra that wants another version of it fails.
set -eu
umask 022
pyproject=$1 extras=$2
[ -n "$extras" ] || exit 0

export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore
python=/opt/venv/bin/python
$python -m pip freeze --all --local | grep == >/tmp/pinned || true
$python - "$pyproject" "$extras" >/tmp/wanted <<'PY'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    known = tomllib.load(file)["project"]["optional-dependencies"]
for extra in filter(None, sys.argv[2].replace(",", " ").split()):
    if extra not in known:
        sys.exit(f"extras.sh: WITH={extra}: trainshed has no extra of this name; it has {', '.join(sorted(known))}")
    print("\n".join(known[extra]))
PY
# torchvision is made for one torch: that of torch's own index where torch is from there, with a version 15 ahead of torch's.
if grep -q '^torchvision' /tmp/wanted && [ -n "${TORCH_INDEX_URL:-}" ]; then
    minor=$($python -c 'import torch; print(torch.__version__.split(".")[1])')
    $python -m pip install --no-deps --index-url "$TORCH_INDEX_URL" "torchvision==0.$((minor + 15)).*"
fi
$python -m pip install --requirement /tmp/wanted --constraint /tmp/pinned
$python -m pip check
$python -m compileall -qq -j 0 "$($python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
chmod -R a+rX /opt/venv
rm /tmp/pinned /tmp/wanted
