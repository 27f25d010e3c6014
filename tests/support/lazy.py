"""Modules that a test file names at its top, and that are imported when a test uses them.

Every worker imports every test file to know the tests. `import torch` alone costs two seconds of CPU, and most workers run
no test that needs it.
"""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for the module of this name. A test that uses it is marked, as with `pytest.mark.torch`, or skips itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # by which pytest would know its own
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
