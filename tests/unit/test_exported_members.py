"""The public faces: `__all__` is sorted and complete, each name leads somewhere and has a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from support.paths import ROOT, TOOLKIT

FACES = ("trainshed.checkpoint", "trainshed.compiler", "trainshed.parallel", "trainshed.parallel.data", "trainshed.runner")
NAMES = [(face, name) for face in FACES for name in importlib.import_module(face).__all__]


def source_of(face: str) -> ast.Module:
    return ast.parse((TOOLKIT / Path(*face.split(".")) / "__init__.py").read_text())


def typed_names(tree: ast.Module) -> set[str]:
    """The names that type checkers see: what the file imports for them alone."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


@pytest.mark.parametrize("face", FACES)
def test_a_faces_list_is_sorted_and_names_nothing_twice(face: str) -> None:
    names = importlib.import_module(face).__all__

    assert names == sorted(set(names))


@pytest.mark.parametrize("face", FACES)
def test_a_faces_list_holds_what_type_checkers_see(face: str) -> None:
    module, tree = importlib.import_module(face), source_of(face)
    own = {
        node.name
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    }

    assert typed_names(tree) | own == set(module.__all__)


@pytest.mark.parametrize(("face", "name"), NAMES, ids=lambda value: value)
def test_a_public_name_is_there_and_documented(face: str, name: str) -> None:
    member = getattr(importlib.import_module(face), name)

    assert inspect.getdoc(member), f"{face}.{name} has no docstring"
    if inspect.isclass(member):
        silent = [
            method
            for method, value in vars(member).items()
            if not method.startswith("_")
            and (inspect.isfunction(value) or isinstance(value, (property, staticmethod, classmethod)))
            and not inspect.getdoc(getattr(member, method))
        ]
        assert silent == [], f"methods of {face}.{name} without a docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    for face in FACES:
        with pytest.raises(AttributeError, match="no_such_name"):
            importlib.import_module(face).no_such_name  # noqa: B018


def test_type_checkers_of_users_see_our_types() -> None:
    assert (TOOLKIT / "trainshed" / "py.typed").read_text() == ""
    assert 'trainshed = ["py.typed", "ui/static/*"]' in (ROOT / "pyproject.toml").read_text()
