"""gloo's worker threads in this process, which have to be at rest when Python ends.

A collective is done for the script a moment before its worker thread lets go of the tensors. If that thread is the last to
hold one, it wants the interpreter's lock, and if the interpreter is being taken apart by then, Python ends the thread, from
inside a C++ destructor: "terminate called without an active exception", and a script that had done all its work dies of
SIGABRT. Seen in runs that end right after a collective on a busy machine. Process groups that are destroyed have the same
threads as long as anything knows them.

`container/hangs/hook` reads this file by its path, in processes that need not have this package.
"""

import os
import time

NAME = "pt_gloo"  # what torch calls these threads begins with this
PATIENCE = 10.0  # seconds


def settle() -> None:
    """Waits until they have put down what they were working on, which mostly takes 5 ms. To be called at exit."""
    if not os.path.isdir("/proc/self/task"):
        return
    quiet, end = 0, time.monotonic() + PATIENCE
    while quiet < 5 and time.monotonic() < end:
        time.sleep(0.001)  # lets go of the interpreter's lock: whoever waits for it is woken, and counts as running
        quiet = 0 if _one_runs() else quiet + 1


def _one_runs() -> bool:
    """Whether one of them is running, or about to, rather than waiting for work."""
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat") as file:
                name, _, rest = file.read().partition(" (")[2].rpartition(") ")
        except OSError:  # it has ended
            continue
        if name.startswith(NAME) and rest[:1] != "S":
            return True
    return False
