"""Which of the toolkit's files imports which; needs nothing but Python itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from support.paths import TOOLKIT
from support.sources import source_files, tree_of

PACKAGE = TOOLKIT / "trainshed"


def module_files() -> list[Path]:
    """All files of the package, sorted."""
    return [path for path in source_files() if PACKAGE in path.parents]


def part_of(path: Path) -> str:
    """The part of the house that a file belongs to: the package's folder, a room of a wing, or a module of its own."""
    return part_named(path.relative_to(PACKAGE).with_suffix("").parts)


def part_named(names: Sequence[str]) -> str:
    """The part of the house by the names below the package: `studio/ui`, `parallel`, `base`."""
    whole = names[0] != "studio" and names[:2] != ("parallel", "commands")
    return names[0] if whole else "/".join(names[:2]).removesuffix("/__init__")


def folder_pairs() -> dict[str, set[str]]:
    """Folders that import each other, as "a, b", each with what the one that knows less of the other imports from it."""
    found: dict[tuple[str, str], set[str]] = {}
    for path, known in file_arrows().items():
        for other in known:
            if PACKAGE not in (path.parent, other.parent) and path.parent != other.parent:
                here, there = (str(one.parent.relative_to(PACKAGE)) for one in (path, other))
                found.setdefault((here, there), set()).add(f"{path.name} imports {other.relative_to(PACKAGE)}")
    mutual = [pair for pair in found if pair[0] < pair[1] and pair[::-1] in found]
    return {", ".join(pair): min(found[pair], found[pair[::-1]], key=len) for pair in mutual}


def imported(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Full names of everything that these nodes of a file import, relative imports resolved."""
    package = path.relative_to(TOOLKIT).parent.parts if TOOLKIT in path.parents else ()
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += (node.module or "").split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


@cache
def names_known_to(path: Path) -> frozenset[str]:
    """Full names of everything that a file imports, in whatever place, imports for type checkers alone included."""
    return frozenset(imported(path, ast.walk(tree_of(path))))


def module_file(name: str) -> Path | None:
    """The file of a module of ours by its full name, None for names that are not modules."""
    path = TOOLKIT.joinpath(*name.split("."))
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def files_known_to(path: Path) -> set[Path]:
    """The files of ours that a file imports, in whatever place, imports for type checkers alone included."""
    names = [name for name in names_known_to(path) if name.split(".")[0] == "trainshed"]
    files = {module_file(name) or module_file(name.rpartition(".")[0]) for name in names}
    return {file for file in files if file is not None} - {path}


def file_arrows() -> dict[Path, set[Path]]:
    """For each file of the toolkit the files that it imports."""
    return {path: files_known_to(path) for path in module_files()}


def reached(arrows: dict[Path, set[Path]], starts: Iterable[Path]) -> set[Path]:
    """All files to which arrows lead from these ones, directly or not."""
    pending, seen = list(starts), set[Path]()
    while pending:
        new = arrows.get(pending.pop(), set()) - seen
        seen |= new
        pending += new
    return seen


def circles(arrows: dict[Path, set[Path]]) -> list[set[Path]]:
    """Groups of files each of which imports, directly or not, all others of its group."""
    known = {path: reached(arrows, [path]) for path in arrows}
    groups = {frozenset(other for other in known[path] if path in known.get(other, ())) for path in arrows}
    return [set(group) for group in groups if group]


def reverse_closure(arrows: dict[Path, set[Path]], changed: set[Path]) -> set[Path]:
    """All files that import one of the changed ones, directly or not, and the changed ones themselves."""
    importers: dict[Path, set[Path]] = {}
    for path, known in arrows.items():
        for file in known:
            importers.setdefault(file, set()).add(path)
    return changed | reached(importers, changed)
