"""Names of Horovod that are not served: using one says so, and what to do instead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

_REAL = "install the real Horovod in the image, which then is used instead"
MODULES = {
    "tensorflow": f"only horovod.torch is served here; {_REAL}",
    "keras": f"only horovod.torch is served here; {_REAL}",
    "mxnet": f"only horovod.torch is served here; {_REAL}",
    "spark": f"`train` starts the ranks; {_REAL}",
    "ray": f"`train` starts the ranks; {_REAL}",
    "run": "`train` starts the ranks: run the script itself, with the distribution horovod",
    "runner": "`train` starts the ranks: run the script itself, with the distribution horovod",
}
NAMES = {
    "start_timeline": "`trainshed profile` records the steps of a running job",
    "stop_timeline": "`trainshed profile` records the steps of a running job",
    "check_extension": "there is no extension to check",
}


class _Finder(MetaPathFinder):
    """The last one asked: whatever it is asked for here does not exist."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: Any = None) -> None:
        if fullname.startswith(self._prefix):
            name = fullname.removeprefix(self._prefix)
            instead = MODULES.get(name.split(".")[0], f"trainshed stands for Horovod without it; {_REAL}")
            raise ModuleNotFoundError(f"{fullname} is not served: {instead}", name=fullname)


def install(package: str) -> None:
    """From here on imports below `package` that fail say why."""
    sys.meta_path.append(_Finder(package))


def missing(module: str, name: str) -> AttributeError:
    """The error that looking up a name raises that `module` does not have."""
    if name.startswith("__"):  # looked for by Python itself and by tools
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    instead = NAMES.get(name, f"trainshed stands for Horovod without it; {_REAL}")
    return AttributeError(f"{module}.{name} is not served: {instead}")
