"""Versions of packages on a Python path, from the names of their metadata folders: nothing is imported."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def version_of(package: str, folders: Iterable[str] = ()) -> str:
    """The version that `import package` would find, "" where it is not installed.

    Args:
        package: its import name, which has to be its distribution's name too.
        folders: searched before this interpreter's own path.
    """
    for folder in (*folders, *sys.path):
        if not folder or not os.path.isdir(f"{folder}/{package}"):
            continue
        prefix = f"{package}-".lower()
        names = [name for name in os.listdir(folder) if name.lower().startswith(prefix) and name.endswith(".dist-info")]
        return names[0][len(prefix) :].removesuffix(".dist-info") if names else "unknown"
    return ""
