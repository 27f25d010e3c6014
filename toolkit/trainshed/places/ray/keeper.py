"""Stands between the actor and `train` on a node of Ray, in a process that Ray does not know.

    keeper LIFE STATUS NICE FOLDER COMMAND...

LIFE: a pipe on which the actor says what `train` is to get: T for SIGTERM, I for SIGINT, K for SIGKILL. Its end says that
the actor is gone, and with it every way home: `train` gets SIGKILL (with time it would save where nobody finds it, and tell
the other hosts that somebody stopped the job), and FOLDER, the host's, is removed. STATUS: gets the return code, in a line.
NICE: the niceness that `train` is to have.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

from trainshed.machine.processes import die_with_parent

WORDS = {b"T": signal.SIGTERM, b"I": signal.SIGINT, b"K": signal.SIGKILL}
LOOK_SECONDS = 0.05  # between two looks at `train`


def main(arguments: list[str]) -> None:
    """Keeps one `train` to its end, and its folder to that of the actor."""
    life, status, nice, folder = *map(int, arguments[:3]), arguments[3]
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError:  # not without privileges
        pass
    if os.fork() != 0:
        os._exit(0)
    os.set_inheritable(life, False)
    os.set_inheritable(status, False)
    try:
        train = subprocess.Popen(arguments[4:], preexec_fn=partial(die_with_parent, signal.SIGTERM))
    except OSError as error:
        print(f"trainshed: {arguments[4]}: {error.strerror}", file=sys.stderr, flush=True)
        os.write(status, b"127\n")
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):  # what `train` prints ends with `train`
        os.dup2(null, fd)
    keep(train, life, status)
    shutil.rmtree(folder, ignore_errors=True)


def keep(train: subprocess.Popen[bytes], life: int, status: int) -> None:
    """Returns when both `train` and the actor are gone."""
    alive, told = True, False
    while alive or not told:
        if alive and select.select([life], [], [], None if told else LOOK_SECONDS)[0]:
            word = os.read(life, 1)
            alive = bool(word)
            if train.poll() is None:
                train.send_signal(WORDS.get(word, signal.SIGKILL))
        elif not alive:
            time.sleep(LOOK_SECONDS)
        if not told and train.poll() is not None:
            told = True
            try:
                os.write(status, f"{train.returncode}\n".encode())
            except OSError:  # nobody wants to know any more
                pass
            os.close(status)


if __name__ == "__main__":
    main(sys.argv[1:])
