#!/bin/sh
# The Python part of a trainshed image, run at build in a stage of its own: a virtual environment at /opt/venv with
# torch and the pinned packages, whose files must have the pinned hashes, less what no training needs, and all of it compiled.
#
#   packages.sh FLAVOUR CONSTRAINTS       FLAVOUR: cpu, gpu or xla
#
# Read from the environment: TORCH_VERSION, TORCH_INDEX_URL (empty: pip's default index), WITH_COMPILER, WITH_NVCC, and pip's own
# PIP_INDEX_URL and PIP_FIND_LINKS.
set -eu
umask 022
flavour=$1 constraints=$2

# System site packages: what BASE_IMAGE installed stays visible, and a user who may not write to /opt/venv can still
# `pip install` (pip then installs below HOME, which it refuses in a closed virtual environment).
python3 -m venv --system-site-packages /opt/venv
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore
pip="/opt/venv/bin/python -m pip"

# torch comes alone from its index, so that a package of another name there is never taken for PyPI's.
$pip install --no-deps ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch==$TORCH_VERSION"
# A torch without CUDA needs none of CUDA's libraries, which the pins of xla have for PyPI's torch.
cuda_parts='^$'
/opt/venv/bin/python -c 'import importlib.metadata as m, sys; sys.exit("nvidia-" in str(m.requires("torch")))' &&
    cuda_parts='^(nvidia-|cuda-|triton)'
awk -v parts="$cuda_parts" '/^[a-z]/ { left_out = $0 ~ parts } !left_out' "$constraints" >/tmp/pins
$pip install --no-deps --require-hashes --requirement /tmp/pins
rm /tmp/pins
$pip check || { echo "packages.sh: the pins are not those of torch $TORCH_VERSION: renew them with images/constraints.sh" >&2; exit 1; }

site=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cuda=$(cd / && /opt/venv/bin/python -c 'import torch; print(torch.version.cuda or "")')
case $flavour:$cuda in
cpu:?*)
    echo "packages.sh: this is a torch with CUDA $cuda, several GB too many for the cpu flavour: set TORCH_INDEX_URL to" \
        "the index of CPU builds, or PIP_FIND_LINKS to a place that has one" >&2
    exit 1 ;;
gpu:)
    echo "packages.sh: this is a torch without CUDA: set TORCH_INDEX_URL to an index of CUDA builds, or leave it empty" >&2
    exit 1 ;;
esac

# Beside torch's own CUDA. Wheels have no lib64 and no libcudart.so, which torch's extensions link; system.sh makes /usr/local/cuda.
if [ "${WITH_NVCC:-0}" = 1 ]; then
    $pip install ninja "nvidia-cuda-nvcc==$cuda.*" "nvidia-cuda-crt==$cuda.*" "nvidia-nvvm==$cuda.*" "nvidia-cuda-cccl==$cuda.*"
    ln -s lib "$site/nvidia/cu13/lib64"
    ln -s libcudart.so.13 "$site/nvidia/cu13/lib/libcudart.so"
fi

# Tests of other packages (numpy.testing imports from numpy's, those stay), torch's test programs, its cmake files.
for package in joblib networkx scipy sklearn sympy; do
    find "$site/$package" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
done
rm -rf "$site/torch/test" "$site/torch/share"
find "$site/torch/bin" -mindepth 1 -maxdepth 1 ! -name torch_shm_manager -exec rm -rf {} +
for package in torch triton; do # static libraries: nothing links at run time
    [ ! -d "$site/$package" ] || find "$site/$package" -name '*.a' -delete
done
# torch.compile on the CPU and C++ extensions need torch's headers, and a compiler: without the one, not the other.
[ "$WITH_COMPILER" = 1 ] || rm -rf "$site/torch/include"

# A read-only image or another user cannot write bytecode later: without it `import torch` costs twice the time.
/opt/venv/bin/python -m compileall -qq -j 0 "$site" || echo "packages.sh: some files are for another Python and stay uncompiled"
chmod -R a+rX /opt/venv
