"""Amazon's `smdistributed`, whose modules our own stand for, on the path of the ranks."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The folder whose `smdistributed` stands for Amazon's.
_COMPAT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "compat")


def with_them(environment: Mapping[str, str]) -> str:
    """PYTHONPATH with our stand-ins after what is in it already."""
    return os.pathsep.join(folder for folder in (environment.get("PYTHONPATH", ""), _COMPAT) if folder)
