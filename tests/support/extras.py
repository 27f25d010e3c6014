"""Skips where an extra package is missing, without the seconds that it takes to import it into pytest's own process."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> None:
    """Skips the test, or the whole module if called at its top, unless all packages are installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'trainshed[dev]'", allow_module_level=True)
