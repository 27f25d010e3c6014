#!/bin/sh
# The system part of a trainshed image, run once at build on any Debian or Ubuntu base: Python if the base has none,
# MPI and a compiler if asked for, and what a container needs to run as any user.
#
# WITH_MPI=1       Open MPI and OpenSSH, for jobs that ask for the mpi distribution on several hosts
# WITH_COMPILER=1  g++ and Python's headers: torch.compile and C++ extensions compile at run time
# WITH_NVCC=1      /usr/local/cuda, which packages.sh fills: extensions that compile CUDA when they are first used
# WITH_EFA=1       Amazon's libfabric, and the plugin by which NCCL uses it; EFA_VERSION says which, like 1.44.0
# WITH_LIBPYTHON=1 Python's shared library, which torch_xla links (python:* images have it)
set -eu
umask 022

command -v apt-get >/dev/null || { echo "system.sh: BASE_IMAGE must be Debian or Ubuntu (no apt-get in it)" >&2; exit 1; }

packages="ca-certificates libgomp1" # LightGBM links the latter; torch and scikit-learn bring their own
python3 -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3 python3-venv"
[ "$WITH_MPI" != 1 ] || packages="$packages openmpi-bin openssh-client openssh-server"
if [ "$WITH_COMPILER" = 1 ]; then
    packages="$packages g++"
    # A Python that apt did not bring (python:* images) has its headers already.
    case $(command -v python3 || true) in /usr/local/*) ;; *) packages="$packages python3-dev" ;; esac
fi
if [ "${WITH_LIBPYTHON:-0}" = 1 ]; then
    case $(command -v python3 || true) in /usr/local/*) ;; *) packages="$packages libpython3-dev" ;; esac
fi
[ "${WITH_EFA:-0}" != 1 ] || packages="$packages curl"
apt-get update
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages
if [ "${WITH_EFA:-0}" = 1 ]; then # it installs packages of its own by apt
    curl -fsS "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_VERSION:-latest}.tar.gz" | tar -xz -C /tmp
    (cd /tmp/aws-efa-installer && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify)
    rm -rf /tmp/aws-efa-installer
fi
if [ "${WITH_NVCC:-0}" = 1 ]; then
    version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    ln -s "/opt/venv/lib/python$version/site-packages/nvidia/cu13" /usr/local/cuda
fi
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log

# Every container makes its own host keys; keys in a public image would be everyone's.
rm -f /etc/ssh/ssh_host_*
if [ "$WITH_MPI" = 1 ]; then
    install -d -m 0755 /run/sshd
    # A program of ours takes its place, which makes a key for each job (toolkit/trainshed/container/drivers/sshd.py).
    dpkg-divert --quiet --local --rename --add /usr/sbin/sshd
fi

python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    { echo "system.sh: trainshed needs Python 3.10 or newer, BASE_IMAGE has $(python3 --version)" >&2; exit 1; }

# python:* images ship the standard library without bytecode, and a container that may not write to it would compile
# it anew at every start.
python3 -m compileall -q -j 0 -x '/(site-packages|dist-packages|test|tests|lib2to3)/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# Any user. uid 1000 has a name and a home. Docker gives a uid without a name HOME=/, so the places that programs
# write to below HOME exist there too. /opt/ml is open like /tmp: a named volume takes over its mode.
if ! getent passwd 1000 >/dev/null; then
    useradd --uid 1000 --user-group --create-home --shell /bin/bash trainshed
    rm -f /var/log/lastlog /var/log/faillog # sparse files, stored in full by some image exporters
fi
install -d -m 1777 /.cache /.config /.local /opt/ml
