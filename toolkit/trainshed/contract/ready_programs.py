"""The places of the ready programs: with an image, with an installed trainshed, with a checkout."""

from __future__ import annotations

import os
import sysconfig

from .wire.variables import ENTRYPOINTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_IN_IMAGES = "/opt/trainshed/entrypoints"
_INSTALLED = "share/trainshed/entrypoints"  # as pyproject.toml has it, below the environment's folder
_CHECKOUT = os.path.normpath(f"{__file__}/../../../../entrypoints")


def ready_folders(environ: Mapping[str, str]) -> list[str]:
    """Those that there are, the first one first: `TRAINSHED_ENTRYPOINTS`, images', the checkout's, the installed ones."""
    own = (f"{sysconfig.get_path('data', scheme)}/{_INSTALLED}" for scheme in (sysconfig.get_default_scheme(), "posix_user"))
    places = (environ.get(ENTRYPOINTS, ""), _IN_IMAGES, _CHECKOUT, *own)
    return [place for place in dict.fromkeys(places) if place and os.path.isdir(place)]
