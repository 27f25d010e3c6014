#!/usr/bin/env bash
# Resolves images/requirements.txt anew and writes the pins of one flavour (nothing is installed):
#
#   images/constraints.sh cpu|gpu|xla
#
# Run it with the lowest Python that the images are built on, so that the pins fit every later one. TORCH_VERSION and
# TORCH_INDEX_URL mean what they mean to the Dockerfiles; PIP_INDEX_URL and PIP_FIND_LINKS are pip's own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

flavour=${1:-}
case $flavour in
cpu) index=${TORCH_INDEX_URL-https://download.pytorch.org/whl/cpu} ;;
gpu) index=${TORCH_INDEX_URL-} ;;
xla) index=${TORCH_INDEX_URL-} TORCH_VERSION=${TORCH_VERSION:-2.9.0} xla=${TORCH_XLA_VERSION:-2.9.0} ;;
*) echo "usage: images/constraints.sh cpu|gpu|xla" >&2; exit 2 ;;
esac
torch=${TORCH_VERSION:-2.13.0}
python=${PYTHON:-python3}

report=$(mktemp)
pins=$(mktemp)
trap 'rm -f "$report" "$pins"' EXIT
"$python" -m pip install --quiet --dry-run --ignore-installed --report "$report" \
    ${index:+--extra-index-url "$index"} "torch==$torch" \
    ${xla:+"torch_xla[tpu]==$xla"} -r requirements.txt

"$python" - "$flavour" "$torch" "$report" >"$pins" <<'PY'
import json
import platform
import re
import sys

flavour, torch, report = sys.argv[1:]
with open(report) as file:
    found = [(item["metadata"]["name"], item["metadata"]["version"]) for item in json.load(file)["install"]]
pins = sorted((re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in found)
cuda = [name for name, _ in pins if name.startswith("nvidia-")]
if flavour != "xla" and (flavour == "gpu") != bool(cuda):
    sys.exit(f"the {flavour} flavour resolved to a torch {'without' if flavour == 'gpu' else 'with'} CUDA: "
             "check TORCH_INDEX_URL and PIP_FIND_LINKS")
minor = ".".join(platform.python_version_tuple()[:2])
print(f"# Pins of the {flavour} image, resolved for torch {torch} on Python {minor} ({platform.machine()}).")
print(f"# Made by: images/constraints.sh {flavour}      (torch itself is pinned by the build argument TORCH_VERSION)")
for name, version in pins:
    if name != "torch":
        print(f"{name}=={version}")
PY
cp "$pins" "$flavour/constraints.txt"
echo "images/$flavour/constraints.txt: $(grep -c == "$flavour/constraints.txt") pins"
