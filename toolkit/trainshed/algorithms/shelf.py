"""Places of declared programs: folders that people name, the image's, and those that came with this checkout."""

from __future__ import annotations

import importlib.util
import os

from trainshed.base.errors import TrainshedError, did_you_mean
from trainshed.contract.ready_programs import ready_folders

from . import ENDING
from .declaration import Algorithm, DeclarationError, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def folders(environ: Mapping[str, str]) -> list[str]:
    """Folders that are searched, the first one first: the current one, then those of ready programs."""
    return [".", *ready_folders(environ)]


def every(environ: Mapping[str, str]) -> tuple[list[Algorithm], list[DeclarationError]]:
    """All declared programs by name, the first of each name, and what is wrong with other declarations."""
    found: dict[str, Algorithm] = {}
    wrong = []
    for place in folders(environ):
        for name in sorted(os.listdir(place)):
            if not name.endswith(ENDING):
                continue
            try:
                algorithm = read(os.path.join(place, name))
            except DeclarationError as error:
                wrong.append(error)
                continue
            found.setdefault(algorithm.name, algorithm)
    return [found[name] for name in sorted(found)], wrong


def find(name: str, environ: Mapping[str, str]) -> Algorithm:
    """The declared program of this name, or the declaration or program at this path.

    Raises:
        TrainshedError: there is none.
        DeclarationError: its declaration is wrong.
    """
    from .declaration import beside

    for path in (name, beside(name)):
        if path.endswith(ENDING) and os.path.isfile(path):
            return read(path)
    algorithms, wrong = every(environ)
    for algorithm in algorithms:
        if algorithm.name == name:
            return algorithm
    if wrong:
        raise wrong[0]
    names = [algorithm.name for algorithm in algorithms]
    raise TrainshedError(
        f"no program declares itself as {name!r}",
        hint=did_you_mean(name, names) or (f"known: {', '.join(names)}" if names else f"a program does by a file *{ENDING}"),
    )


def missing(algorithm: Algorithm) -> list[str]:
    """Modules that it needs and that this Python does not have."""
    return [name for name in algorithm.needs if importlib.util.find_spec(name) is None]
