"""No file but the table and the places' own asks for a place by its name: a new one would have to be added to each."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from support.offenders import no_offenders
from support.paths import TOOLKIT
from support.sources import source_files, tree_of
from trainshed.runner.job.places import BUILT_IN

PACKAGE = TOOLKIT / "trainshed"
OWN = ("places/", "runner/job/places.py")
# Where such a word names something else.
OTHERS = {
    "container/": "a distribution, or who has scheduled the hosts; `train` knows nothing of the runner's places",
    "contract/": "a distribution",
    "compat/": "modules of Horovod",
    "runner/job/distribution.py": "a distribution",
}


def records(tree: ast.Module) -> set[str]:
    """What a file calls the records that it has from the table."""
    imports = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("places")
    ]
    names = [alias for node in imports for alias in node.names]
    return {alias.asname or alias.name for alias in names if alias.name.lower() in BUILT_IN}


def is_name(node: ast.AST | None, known: set[str]) -> bool:
    """Whether an expression is a place's name, its record, or a collection with one. known: what records are called."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(is_name(item, known) for item in node.elts)
    if isinstance(node, ast.Attribute):  # SLURM.name
        return node.attr == "name" and is_name(node.value, known)
    return (isinstance(node, ast.Constant) and node.value in BUILT_IN) or (isinstance(node, ast.Name) and node.id in known)


def asked(tree: ast.Module) -> list[int]:
    """Lines in which a file compares with the name of a place, or looks something up by it."""
    known = records(tree)
    return sorted({line for line, part in _questions(tree) if is_name(part, known)})


def _questions(tree: ast.Module) -> Iterator[tuple[int, ast.AST | None]]:
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            parts = list(node.args[:1])
        yield from ((getattr(part, "lineno", 0), part) for part in parts)


def test_the_scan_sees_every_way_to_ask() -> None:
    text = (
        'from ..job.places import HERE, RAY as A_RAY, SSH\nif on == "slurm": pass\nif on in ("here", "ssh"): pass\n'
        'if place is A_RAY: pass\nif x != SSH.name: pass\na.get("ray")\na["kubernetes"]\nb = {"ssh": 1}\n'
        'match on:\n    case "here": pass\nsay("slurm has it")\nchoose("ssh")\nstart(on=HERE.name)\nif HERE_ == on: pass\n'
    )

    assert asked(ast.parse(text)) == [2, 3, 4, 5, 6, 7, 8, 10]


def test_no_file_asks_for_a_place_by_its_name() -> None:
    files = {str(path.relative_to(PACKAGE)): path for path in source_files() if path.is_relative_to(PACKAGE)}
    lines = {name: asked(tree_of(path)) for name, path in files.items() if not name.startswith((*OWN, *OTHERS))}

    no_offenders({name: list(map(str, found)) for name, found in lines.items()}, "ask runner/job/places.py instead: lines")
