"""Turns an interpreter that has just begun into one from which ranks are forked (`template`), where `train` asks for that.

Python imports `sitecustomize` at its start; this folder is first on PYTHONPATH of such an interpreter alone. It begins with
an empty program, which cannot do harm where Python does not come by here, and becomes that of the ranks here. A
`sitecustomize` of others is run as if this one were not there.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(*place):  # type: ignore[no-untyped-def]
    """A file of ours, as a module that no import finds: this Python may not have trainshed installed."""
    module = type(sys)("trainshed_warm_start")
    module.__file__ = os.path.normpath(os.path.join(_HERE, os.pardir, *place))
    loader = sys.modules["_frozen_importlib_external"].SourceFileLoader(module.__name__, module.__file__)
    exec(loader.get_code(module.__name__), module.__dict__)
    return module


def _begin():  # type: ignore[no-untyped-def]
    """The template; or turns into it, and does not return."""
    variable = _load(os.pardir, os.pardir, "contract", "wire", "variables.py").WARM_SOCKET
    socket, empty, _ = os.environ[variable].partition(":")
    if empty:
        argv = os.read(int(socket), 1 << 20).split(b"\0")
        with open("/proc/self/environ", "rb") as file:  # without what Python itself sets at its start
            given = dict(one.split(b"=", 1) for one in file.read().split(b"\0") if b"=" in one)
        os.execve(argv[0], argv, {**given, os.fsencode(variable): os.fsencode(socket)})
    os.set_inheritable(int(socket), False)
    return _load("template.py").Template(int(socket), variable, _HERE, _load)


def _step_aside():  # type: ignore[no-untyped-def]
    """Imports the module that would have been imported without this one; returns the error where that fails."""
    sys.path[:] = [folder for folder in sys.path if folder != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # noqa: F401 (the next one on the path)
    except BaseException as error:
        return error


try:
    _template = _begin()
    _missing = _step_aside()
    _template.serve()  # from here on this is a rank
except BaseException:  # it was to be none: `train` starts its ranks plainly
    os._exit(1)
if _missing is not None:
    raise _missing
