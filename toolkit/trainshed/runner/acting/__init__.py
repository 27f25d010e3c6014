"""What places have to offer (`trainshed.places`, and other packages); the table of places is `job/places.py`.

base        hosts that are children of the runner (`Hosts`, `Backend`)
submission  jobs that a queue has from their start (`Queue`)
leftovers   what goes on of a run whose runner was killed (`Leftovers`)
"""

from __future__ import annotations

from pkgutil import resolve_name

from ..job.places import Place, UnknownPlace
from .base import Backend, Hosts
from .submission import Queue

__all__ = ["Backend", "Hosts", "Queue", "acting"]


def acting(place: Place) -> Hosts | Queue:
    """Returns what acts at a place; its modules are loaded here. Raises UnknownPlace."""
    if not place.acts:
        raise UnknownPlace(f"nothing runs jobs at {place.title}", hint="is the package that adds the place installed?")
    try:
        made = resolve_name(place.acts)(place)
    except (ImportError, AttributeError, TypeError) as error:
        raise UnknownPlace(f"what acts {place.where} cannot be loaded: {error}", hint=place.acts) from error
    if not isinstance(made, (Hosts, Queue)):
        raise UnknownPlace(f"{place.acts} is neither Hosts nor a Queue", hint="docs/places.md says what a place has")
    return made
