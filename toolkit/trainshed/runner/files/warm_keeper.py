"""Removes a warm pool when its time is over, whatever has become of the runners that used it: one small process a pool.

    keeper FOLDER

It has none of the job's variables, holds no lock while the pool may be used, and ends with the pool. A machine that starts
again has no keeper; the next `trainshed run`, `ps` or `release` removes what is too old then (`pool.sweep`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from trainshed.base.locks import hold, is_held
from trainshed.machine.isolation import isolated

from .warm_pool import LOCK, end_in_time, keeper_lock

LOOK_SECONDS = 1.0


def start(folder: str, environ: Mapping[str, str]) -> None:
    """Gives a pool a keeper if it has none. Raises OSError."""
    if is_held(keeper_lock(folder)):
        return
    kept = {name: environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in environ}
    subprocess.Popen(
        isolated("trainshed.runner.files.warm_keeper", folder),
        env=kept,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def keep(folder: str) -> None:
    """Returns when the pool is gone, or another keeper has it. Raises OSError."""
    fd = hold(keeper_lock(folder))
    if fd is None:
        return
    while os.path.exists(f"{folder}/{LOCK}"):
        end_in_time(folder)
        time.sleep(LOOK_SECONDS)
    os.close(fd)


if __name__ == "__main__":
    try:
        keep(sys.argv[1])
    except OSError:  # the pool has gone
        pass
