"""Turns an interpreter that has just begun into one from which ranks are forked (`template`), where `train` asks for that.

Python imports `sitecustomize` at its start; this folder is first on PYTHONPATH of such an interpreter alone. It begins with
an empty program, which cannot do harm where Python does not come by here, and becomes that of the ranks here. A
`sitecustomize` of others is run as if this one were not there.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _exec(path):  # type: ignore[no-untyped-def]
    """What a file of ours defines: this Python may not have trainshed installed."""
    loader = sys.modules["_frozen_importlib_external"].SourceFileLoader("trainshed_warm_start", path)
    names = {"__name__": "trainshed_warm_start", "__file__": path}
    exec(loader.get_code("trainshed_warm_start"), names)
    return names


def _begin():  # type: ignore[no-untyped-def]
    """The template; or turns into it, and does not return."""
    container = os.path.dirname(os.path.dirname(_HERE))
    wire = os.path.join(os.path.dirname(container), "contract", "wire")
    variable = _exec(os.path.join(wire, "variables.py"))["WARM_SOCKET"]
    socket, empty, _ = os.environ[variable].partition(":")
    if empty:
        argv = os.read(int(socket), 1 << 20).split(b"\0")
        with open("/proc/self/environ", "rb") as file:  # without what Python itself sets at its start
            given = dict(one.split(b"=", 1) for one in file.read().split(b"\0") if b"=" in one)
        os.execve(argv[0], argv, {**given, os.fsencode(variable): os.fsencode(socket)})
    os.set_inheritable(int(socket), False)
    made = _exec(os.path.join(os.path.dirname(_HERE), "template.py"))["Template"]
    return made(int(socket), variable, _HERE)


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
