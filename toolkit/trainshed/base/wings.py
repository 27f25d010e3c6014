"""The wings of the package, each of which may be left out: modules that the core loads by name, where they are installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from .errors import EXIT_USER, TrainshedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

# Names of packages below trainshed that the core never imports, each with what people know it for.
WINGS = {
    "studio": "pages, the catalogue of runs, models, rules, tuning jobs and pipelines of steps",
    "parallel": "training in parallel",
    "compiler": "the compiler",
    "compat": "other libraries' names",
}


def has_wing(name: str) -> bool:
    """Returns whether a wing is installed: a name in `WINGS`."""
    return find_spec(f"trainshed.{name}") is not None


def module_of_wing(name: str, what: str) -> ModuleType:
    """A module of a wing, loaded.

    Args:
        name: below trainshed, such as `studio.models.channel_source`.
        what: what needs it, for the message.

    Raises:
        MissingWingError: the wing is not installed.
    """
    wing = name.partition(".")[0]
    if not has_wing(wing):
        raise MissingWingError(
            f"{what} needs trainshed.{wing} ({WINGS[wing]}), which is not installed here", hint="pip install trainshed"
        )
    return import_module(f"trainshed.{name}")


class MissingWingError(TrainshedError):
    """A part of the package was left out of this installation."""

    exit_code = EXIT_USER
