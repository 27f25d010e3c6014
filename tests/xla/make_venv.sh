#!/usr/bin/env bash
# The lightest environment with a real torch_xla: 1 GB is downloaded, 2.4 GB on disk, half a minute. For tests on a CPU.
#
#   tests/xla/make_venv.sh DIR        PYTHON: the interpreter (3.11; torch_xla links its libpython3.11.so.1.0)
#
# torch_xla 2.9.0 is the last release and needs torch 2.9.0 in PyPI's CUDA build. Of CUDA only the runtime is installed; the
# other libraries are stand-ins (stand_ins.py says why). Needs gcc and readelf.
set -euo pipefail
dir=$1
python=${PYTHON:-python3.11}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ ! -e "$dir/ready" ] || exit 0

"$python" -m venv "$dir"
pip="$dir/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir"
$pip --no-deps torch==2.9.0 torch_xla==2.9.0 nvidia-cuda-runtime-cu12==12.8.90
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# So that pip does not fetch the CUDA packages with the next one.
sed -i -E '/^Requires-Dist: (nvidia-|triton)/d' "$site"/torch-2.9.0.dist-info/METADATA
"$dir/bin/python" "$here/stand_ins.py" "$site"
$pip numpy absl-py requests psutil pyyaml filelock typing-extensions 'sympy>=1.13.3' networkx jinja2 fsspec \
    'transformers>=4.57' 'accelerate>=1.0'
"$dir/bin/python" -c 'import torch_xla, torch; assert torch_xla.device().type == "xla"; print("torch", torch.__version__)' 2>/dev/null
touch "$dir/ready"
