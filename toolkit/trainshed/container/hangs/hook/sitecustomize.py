"""Lets `train` ask a Python process where it is, lets a process that used gloo end in peace, looks at argparse's work.

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


class _ArgparseFinder:
    """First on `sys.meta_path` until argparse is imported: has `argument_hook.py` look at what its parsers do."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "argparse":
            return None
        if cls in sys.meta_path:
            sys.meta_path.remove(cls)
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        loader = spec.loader if spec is not None else None
        if loader is not None and hasattr(loader, "__dict__"):
            run = loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                del loader.exec_module
                run(module)
                _look_at_arguments(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _look_at_arguments(argparse) -> None:  # type: ignore[no-untyped-def]
    try:
        from importlib.machinery import SourceFileLoader

        names = {"__name__": "trainshed_argument_hook"}
        path = os.path.join(os.path.abspath(__file__).rsplit(os.sep, 3)[0], "argument_hook.py")
        exec(SourceFileLoader(names["__name__"], path).get_code(names["__name__"]), names)  # type: ignore[arg-type]
        names["install"](argparse)  # type: ignore[operator]
    except Exception:
        pass


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
    if os.environ.get("SM_USER_ARGS", "[]") != "[]":
        if "argparse" in sys.modules:
            _look_at_arguments(sys.modules["argparse"])
        else:
            sys.meta_path.insert(0, _ArgparseFinder)  # type: ignore[arg-type]
except Exception:  # never the reason why a program does not start
    pass
_step_aside()
