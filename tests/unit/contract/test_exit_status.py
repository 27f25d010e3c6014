"""Every exit status of `train` has a row in one table, which the docs and `train --help` repeat."""

from __future__ import annotations

import ast
import re

import pytest

from support.paths import TOOLKIT
from support.sources import source_files, tree_of
from trainshed.base import errors
from trainshed.container.main import USAGE


def constants() -> dict[str, int]:
    return {name: value for name, value in vars(errors).items() if name.startswith("EXIT_") and isinstance(value, int)}


def test_every_status_has_one_row() -> None:
    rows = [row[0].removesuffix(" + n") for row in errors.EXIT_TABLE]

    assert sorted(row for row in rows if row.isdigit()) == sorted(str(value) for value in constants().values())
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("value", [value for value in constants().values() if value])
def test_the_help_text_names_it(value: int) -> None:
    assert re.search(rf"\b{value}\b", USAGE)


def test_every_status_is_used() -> None:
    sources = [path.read_text() for path in TOOLKIT.rglob("*.py") if path.name != "errors.py"]

    assert [name for name in constants() if not any(name in source for source in sources)] == []


def test_failures_take_their_status_from_the_table() -> None:
    literals = [
        f"{path.relative_to(TOOLKIT)}:{node.value.lineno}"
        for path in source_files()
        for node in ast.walk(tree_of(path))
        if (isinstance(node, ast.keyword) and node.arg == "exit_code")
        or (isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "exit_code" for t in node.targets))
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, int) and node.value.value > 0
    ]

    assert literals == []
