"""Lets `train` ask a Python process where it is, and lets a process that used gloo end in peace.

Python imports `sitecustomize` at its start; this folder is first on PYTHONPATH. On signal 42 (a real-time signal without
any other meaning) the process writes the stacks of all its threads to a file of its own, which lies in memory and goes
with the process; `train` finds it by its name in /proc/PID/fd. No thread, no patch, no import beyond `faulthandler`
and others that are built in. `trainshed_stacks=off` leaves all of it out.

A `sitecustomize` of the user's, or of the image's, is run as if this one were not there. Old and unusual Pythons have to
get past this file unharmed: hence its plain syntax, and that it never raises but to say that there is no other one.
"""

import os
import sys

SIGNAL = 42
NAME = "trainshed-stacks"
GLOO = "pt_gloo"  # what torch calls gloo's worker threads begins with this
PATIENCE = 10.0  # seconds


def _register() -> None:
    import faulthandler

    try:
        fd = os.memfd_create(NAME)  # not inherited by programs that this one starts
    except (AttributeError, OSError):  # Pythons built for old systems lack it
        path = f"{os.environ.get('TMPDIR') or '/tmp'}/{NAME}-{os.getpid()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)


def _settle() -> None:
    """At exit: waits until gloo's threads have put down what they were working on, which mostly takes 5 ms.

    A collective is done for the script a moment before its worker thread lets go of the tensors. If that thread is the
    last to hold one, it wants the interpreter's lock, and if the interpreter is being taken apart by then, Python ends
    the thread, from inside a C++ destructor: "terminate called without an active exception", and a script that had done
    all its work dies of SIGABRT. Seen in runs that end right after a collective on a busy machine.
    """
    if "torch" not in sys.modules:
        return
    import time

    quiet, end = 0, time.monotonic() + PATIENCE
    while quiet < 5 and time.monotonic() < end:
        time.sleep(0.001)  # lets go of the interpreter's lock: whoever waits for it is woken, and counts as running
        quiet = 0 if _gloo_runs() else quiet + 1


def _gloo_runs() -> bool:
    """Whether one of gloo's worker threads is running, or about to, rather than waiting for work."""
    for thread in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/" + thread + "/stat") as file:
                name, _, rest = file.read().partition(" (")[2].rpartition(") ")
        except OSError:  # it has ended
            continue
        if name.startswith(GLOO) and rest[:1] != "S":
            return True
    return False


def _step_aside() -> None:
    """Imports the module that would have been imported without this one; an ImportError where there is none, as always."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != here]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401 (the next one on the path)


try:
    _register()
    if os.path.isdir("/proc/self/task"):
        import atexit

        atexit.register(_settle)  # the first to be registered is the last to be called
except Exception:  # never the reason why a program does not start
    pass
_step_aside()
