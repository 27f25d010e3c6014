"""The toolkit's source files, each of which is parsed once."""

from __future__ import annotations

import ast
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
    return ast.parse(path.read_text(), str(path), feature_version=(3, 10))
