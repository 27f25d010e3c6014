"""Distributions that installed packages add, by entry points of the group `trainshed.launchers`."""

from __future__ import annotations

from functools import cache

from trainshed.base.errors import LaunchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GROUP = "trainshed.launchers"


def added() -> tuple[str, ...]:
    """The names of the distributions that installed packages add."""
    from importlib.metadata import entry_points  # slow to load, and few jobs need it

    return tuple(entry.name for entry in entry_points(group=GROUP))


@cache
def plugged_in(name: str) -> Any:
    """The Launcher that an installed package adds under this name; None where none does.

    Raises:
        LaunchError: the package's module cannot be imported, or holds something else there.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=name):
        try:
            launcher = entry.load()
        except Exception as error:
            raise LaunchError(f"the distribution {name!r} cannot be loaded from {entry.value}: {error!r}") from error
        if getattr(getattr(launcher, "traits", None), "name", None) != name:
            raise LaunchError(f"{entry.value} is not a Launcher whose traits have the name {name!r}")
        return launcher
    return None
