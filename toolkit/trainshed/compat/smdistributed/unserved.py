"""Modules of Amazon's library that are not supported: importing one says what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

from trainshed.contract.wire.pipeline import NotServed

ALTERNATIVES = {
    "nn": "use the modules of torch.nn or transformers",
    "optimizers": "use torch.optim (fused=True) or apex",
}
OTHERWISE = "trainshed.parallel has the pipeline's API"


class UnservedName(NotServed, AttributeError):
    """A name of a module that is not served. Tools that look through all loaded modules get what they expect."""


class _Finder(MetaPathFinder):
    """The last one asked: whatever it is asked for here does not exist."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: Any = None) -> None:
        if fullname.startswith(self._prefix):
            name = fullname.removeprefix(self._prefix)
            instead = ALTERNATIVES.get(name.split(".")[0], OTHERWISE)
            # No ModuleNotFoundError, which `from package import name` would take for its own and say nothing of why.
            raise ImportError(f"{fullname} is not supported: {instead}", name=fullname)


def install(package: str) -> None:
    """From here on imports below `package` that fail say why."""
    sys.meta_path.append(_Finder(package))
