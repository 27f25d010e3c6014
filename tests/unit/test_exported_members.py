"""The public faces: `__all__` is sorted and complete, each name leads somewhere and has a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

from support.offenders import check_each, no_offenders
from support.paths import ROOT, TOOLKIT
from support.sources import tree_of

FACES = (
    "trainshed",
    "trainshed.checkpoint",
    "trainshed.compiler",
    "trainshed.parallel",
    "trainshed.parallel.data",
    "trainshed.runner",
)

# The public names of all faces before the code was moved into wings, and whatever pages, examples and ready programs have
# told people to import, at any time. Nothing is taken out.
EARLIER = Path(__file__).with_name("earlier_names.txt").read_text().split()


def typed_names(tree: ast.Module) -> set[str]:
    """The names that type checkers see: what the file imports for them alone."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    stub = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]  # of `__init__.pyi` alone
    imports = [node for block in (*blocks, *stub) for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def test_a_faces_list_is_sorted_and_names_nothing_twice() -> None:
    found = {face: importlib.import_module(face).__all__ for face in FACES}

    no_offenders({face: [] if names == sorted(set(names)) else names for face, names in found.items()}, "not sorted")


def test_a_faces_list_holds_what_type_checkers_see() -> None:
    found = {}
    for face in FACES:
        file = TOOLKIT / Path(*face.split(".")) / "__init__.py"
        stub = file.with_suffix(".pyi")
        tree = tree_of(stub if stub.exists() else file)
        own = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        seen = typed_names(tree) | {name for name in own if not name.startswith("_")}
        found[face] = seen ^ set(importlib.import_module(face).__all__)

    no_offenders(found, "__all__ must list what type checkers see")


def test_a_public_name_is_there_and_documented() -> None:
    def check(name: str) -> None:
        member = pkgutil.resolve_name(name)
        assert inspect.getdoc(member), "no docstring"
        methods = vars(member) if inspect.isclass(member) else {}
        silent = [
            method
            for method, value in methods.items()
            if not method.startswith("_")
            and (inspect.isfunction(value) or isinstance(value, (property, staticmethod, classmethod)))
            and not inspect.getdoc(getattr(member, method))
        ]
        assert not silent, f"methods without a docstring: {silent}"

    check_each([f"{face}:{name}" for face in FACES for name in importlib.import_module(face).__all__], check)


def test_an_unknown_name_is_an_attribute_error() -> None:
    for face in FACES:
        with pytest.raises(AttributeError, match="no_such_name"):
            importlib.import_module(face).no_such_name  # noqa: B018


def test_type_checkers_of_users_see_our_types() -> None:
    assert (TOOLKIT / "trainshed" / "py.typed").read_text() == ""
    assert (
        'trainshed = ["py.typed", "*.pyi", "studio/ui/static/*", "studio/pages/static/*"]'
        in (ROOT / "pyproject.toml").read_text()
    )


@pytest.mark.torch
def test_what_people_could_import_is_still_there() -> None:
    def check(told: str) -> None:
        module, _, name = told.partition(":")
        assert not name or hasattr(importlib.import_module(module), name)

    assert len(EARLIER) > 90
    check_each(EARLIER, check)
