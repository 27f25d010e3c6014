"""What installed packages add to trainshed: objects that they name by entry points of a group.

The groups: `trainshed.places`, `.launchers`, `.commands`, `.sources` and `.rules`. Packages are asked only for names that
are not built in: looking through what is installed takes longer than all else of a small command.
"""

from __future__ import annotations

from functools import cache

from .errors import TrainshedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint
    from typing import Any


@cache
def points(group: str) -> tuple[EntryPoint, ...]:
    """All entry points of a group."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def names(group: str) -> tuple[str, ...]:
    """The names that installed packages add to a group."""
    return tuple(point.name for point in points(group))


@cache
def load(
    group: str, name: str, fits: Callable[[Any, str], bool], kind: str, error: type[TrainshedError] = TrainshedError
) -> Any:
    """The object that an installed package adds under a name; None where none does.

    Args:
        fits: whether an object is one of the group, under its name.
        kind: what such objects are called in messages.
        error: what is raised where the package's module cannot be imported, or holds something else there.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=group, name=name):
        try:
            found = point.load()
        except (Exception, SystemExit) as problem:  # the package's own
            said = f"{type(problem).__name__}: {problem}"
            raise error(f"the {kind} {name} cannot be loaded: {said}", hint=point.value) from problem
        if not fits(found, name):
            raise error(f"the entry point {name} of {group} leads to no {kind} of that name", hint=point.value)
        return found
    return None
