"""The places of the ready programs: with an image, with an installed trainshed, with a checkout."""

from __future__ import annotations

import os
import sys

from .wire.variables import ENTRYPOINTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_IN_IMAGES = "/opt/trainshed/entrypoints"
_INSTALLED = "share/trainshed/entrypoints"  # as pyproject.toml has it, below the environment's folder
_CHECKOUT = os.path.normpath(f"{__file__}/../../../../entrypoints")


def ready_folders(environ: Mapping[str, str]) -> list[str]:
    """Those that there are, the first one first: `TRAINSHED_ENTRYPOINTS`, images', the checkout's, the installed ones."""
    own = (f"{base}/{_INSTALLED}" for base in _bases())
    places = (environ.get(ENTRYPOINTS, ""), _IN_IMAGES, _CHECKOUT, *own)
    return [place for place in dict.fromkeys(places) if place and os.path.isdir(place)]


def _bases() -> list[str]:
    """Where installers put data: what `sysconfig` has as `data`, whose import is a tenth of a start of `train`."""
    # Some Linux distributions have theirs in the first, and what people install in the second.
    bases = [sys.prefix] if sys.prefix != sys.base_prefix else [f"{sys.prefix}/local", sys.prefix]
    site = sys.modules.get("site")  # there unless Python was started with -S
    return [*bases, site.getuserbase()] if site is not None else bases
