#!/bin/sh
# Installs trainshed from SOURCE into an empty tree OUT (OUT/opt/venv), so that the image takes it as one small layer.
# Offline: setuptools and trainshed's dependencies are in /opt/venv already, and `pip check` holds them to it.
#
#   trainshed.sh SOURCE OUT
set -eu
umask 022
source=$1 out=$2

/opt/venv/bin/python -m pip install --quiet --no-cache-dir --no-index --no-deps --no-build-isolation --no-compile \
    --ignore-installed --prefix "$out/opt/venv" "$source"
site=$(echo "$out"/opt/venv/lib/python3*/site-packages)
PYTHONPATH=$site /opt/venv/bin/python -m pip check
/opt/venv/bin/python -m compileall -q -s "$out" "$site" "$out/opt/trainshed"

# In front of programs that SDK v3's drivers call, see toolkit/trainshed/container/drivers.
front() { # FILE PYTHON-OPTION MODULE
    install -d -m 0755 "$(dirname "$out$1")"
    printf '#!/bin/sh\nexec /opt/venv/bin/python %s -m trainshed.container.drivers.%s "$@"\n' "$2" "$3" >"$out$1"
    chmod 0755 "$out$1"
}
front /opt/venv/bin/torchrun -P torchrun
if [ -e /usr/sbin/sshd.distrib ]; then
    front /opt/venv/bin/mpirun -I mpirun
    front /usr/sbin/sshd -I sshd
fi
# `docker run IMAGE demo`, `docker run IMAGE doctor`
for command in demo doctor; do
    printf '#!/bin/sh\nexec /opt/venv/bin/trainshed %s "$@"\n' "$command" >"$out/opt/venv/bin/$command"
    chmod 0755 "$out/opt/venv/bin/$command"
done
chmod -R a+rX "$out"
