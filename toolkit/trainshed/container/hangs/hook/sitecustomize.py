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


def _register() -> None:
    import _signal
    import faulthandler

    # Python puts this back when it is taken apart. By default the signal would end a process that is asked just then.
    _signal.signal(SIGNAL, _signal.SIG_IGN)
    try:
        fd = os.memfd_create(NAME)  # not inherited by programs that this one starts
    except (AttributeError, OSError):  # Pythons built for old systems lack it
        path = f"{os.environ.get('TMPDIR') or '/tmp'}/{NAME}-{os.getpid()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)


def _settle() -> None:
    """At exit: waits until gloo's threads are at rest; that module says why."""
    if "torch" in sys.modules:
        import runpy

        package = os.path.abspath(__file__).rsplit(os.sep, 4)[0]
        runpy.run_path(os.path.join(package, "machine", "gloo_threads.py"))["settle"]()


def _step_aside() -> None:
    """Imports the module that would have been imported without this one; an ImportError where there is none, as always."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != here]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401 (the next one on the path)


try:
    _register()
    import atexit

    atexit.register(_settle)  # the first to be registered is the last to be called
except Exception:  # never the reason why a program does not start
    pass
_step_aside()
