"""One module names the variables that pass between the programs of trainshed; everything else uses its names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.paths import TOOLKIT
from support.sources import source_files, tree_of
from trainshed.contract.settings import Settings
from trainshed.contract.wire import variables

MODULE = Path("trainshed/contract/wire/variables.py")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def trees() -> dict[Path, ast.Module]:
    """Every source file of the toolkit, parsed, by its path below toolkit/."""
    return {path.relative_to(TOOLKIT): tree_of(path) for path in source_files()}


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string, the constant parts of f-strings among them; docstrings left out."""
    nodes = list(ast.walk(tree))
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)) and id(node) not in docstrings:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            yield node.lineno, text


def test_no_other_module_spells_a_variable() -> None:
    spelled = [
        f"{path}:{line}"
        for path, tree in trees().items()
        if path != MODULE
        for line, text in strings(tree)
        if variables.PREFIX in text
    ]

    assert spelled == [], "use the names in contract/wire/variables.py"


def test_the_scan_sees_f_strings_and_leaves_docstrings_out() -> None:
    tree = ast.parse('"""TRAINSHED_A"""\ndef f():\n    """TRAINSHED_B"""\n    return f"{x}TRAINSHED_C", b"TRAINSHED_D"\n')

    assert sorted(text for _, text in strings(tree)) == ["TRAINSHED_C", "TRAINSHED_D"]


def test_the_table_has_one_row_for_each_variable() -> None:
    named = [value for name, value in vars(variables).items() if name.isupper() and name not in ("PREFIX", "TABLE")]
    rows = [row[0] for row in variables.TABLE]

    assert sorted(named) == rows == sorted(set(rows))
    assert all(name.startswith(variables.PREFIX) for name in rows)
    assert all(cell for row in variables.TABLE for cell in row)


def test_no_variable_of_the_table_is_that_of_a_setting() -> None:
    assert not {row[0] for row in variables.TABLE} & {variables.of_setting(name) for name in Settings._fields}


def test_names_made_for_settings_are_those_of_settings() -> None:
    calls = [
        (str(path), node.args[0].value)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "of_setting"
        and isinstance(node.args[0], ast.Constant)
    ]

    assert calls
    assert [call for call in calls if call[1] not in Settings._fields] == []


def test_every_variable_is_used() -> None:
    used = {
        node.id for path, tree in trees().items() if path != MODULE for node in ast.walk(tree) if isinstance(node, ast.Name)
    }

    assert [row[0] for row in variables.TABLE if row[0].removeprefix(variables.PREFIX) not in used] == []
