"""The toolkit's source files, each of which is parsed once."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

from support.paths import TOOLKIT


@cache
def source_files() -> tuple[Path, ...]:
    """All of them, sorted."""
    return tuple(sorted(path for path in TOOLKIT.rglob("*.py") if "__pycache__" not in path.parts))


@cache
def tree_of(path: Path) -> ast.Module:
    """A file, parsed as the oldest Python that we support does. Not to be changed."""
    gc.disable()  # else collections look at all trees again and again: four times as slow
    try:
        return ast.parse(path.read_text(), str(path), feature_version=(3, 10))
    finally:
        gc.enable()
