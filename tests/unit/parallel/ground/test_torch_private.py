"""Private names of torch are in one file, and the installed torch has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import new_class
from typing import Any

import pytest

from support.offenders import no_offenders
from support.paths import TOOLKIT
from support.sources import tree_of

WING = TOOLKIT / "trainshed/parallel"
ALLOWED = WING / "ground/torch_private.py"
MOST = 36  # names; fewer are better
# Other private names: Python's, Amazon's format of checkpoints, transformers', ours on tensors, names of operators.
OF_OTHERS = {
    *("_getframe", "_exit", "_fields", "_replace", "_smp_is_partial", "_active_collector", "_is_hf_initialized"),
    *("_trainshed", "_foreach_", "_c10d_functional"),
}
PATHS = {"_C", "_autograd", "_python_dispatch"}  # modules of names that are counted
OPERATORS = {"_aten", "_ATEN"}  # what torch.ops.aten is called: names in it are those of operators


def is_private(name: str) -> bool:
    return name.isidentifier() and name.startswith("_") and not name.startswith("__") and bool(name.strip("_"))


def made_here(tree: ast.AST) -> set[str]:
    """Names that a file defines: functions, classes, variables, arguments, attributes of `self` and slots."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and on_self(node):
            found.add(node.attr)
    return found


def on_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def is_operators(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in OPERATORS


def used(tree: ast.Module, ours: set[str], theirs: set[str]) -> Iterator[str]:
    """Private names in attributes, imports and texts that are not ours; of those that torch has as well, those of `self`
    alone are ours."""
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and one.args and is_operators(one.args[0])]
    of_operators = {id(text) for call in calls for text in call.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not is_operators(node.value) and (node.attr not in ours or (node.attr in theirs and not on_self(node))):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_private(node.value):
            if id(node) not in of_operators and (node.value not in ours or node.value in theirs):
                yield node.value
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            words = [getattr(node, "module", None) or "", *(one.name for one in node.names)]
            if not words[0].startswith("trainshed") and not getattr(node, "level", 0):
                yield from (part for word in words for part in word.split(".") if is_private(part))


def names_in_torch() -> set[str]:
    """The private names of what the wing mostly handles."""
    import torch
    from torch import nn
    from torch.distributed.tensor import DTensor

    module = nn.Linear(1, 1)
    update = torch.optim.LBFGS(module.parameters())
    found = {*dir(torch.Tensor), *dir(module), *dir(update), *dir(DTensor), *dir(nn.parallel.DistributedDataParallel)}
    return {name for name in found | {*dir(torch.amp.GradScaler("cpu", enabled=False))} if is_private(name)}


@pytest.mark.torch
def test_private_names_of_torch_are_in_one_file() -> None:
    """Who adds one there says what it is for; who needs it somewhere else uses what is there."""
    files = sorted(WING.rglob("*.py"))
    theirs, ours = names_in_torch(), set().union(*(made_here(tree_of(path)) for path in files))
    found = {
        str(path.relative_to(WING)): {*used(tree_of(path), ours, theirs)} - OF_OTHERS for path in files if path != ALLOWED
    }

    no_offenders(found, "these are private names of torch: use, or add, what ground/torch_private.py has for them")


def test_the_scan_sees_attributes_imports_and_texts() -> None:
    text = (
        "from torch._C import _one\nimport torch.utils._two\nx._three\nself._ours\nx._ours\ngetattr(x, '_four')\n"
        "_aten._five\ngetattr(_aten, '_six', None)\nfrom trainshed._seven import x\nfrom ._eight import y\n"
        "self._both\nx._both\n"
    )

    found = list(used(ast.parse(text), {"_ours", "_both"}, {"_both"}))

    assert sorted(found) == ["_C", "_both", "_four", "_one", "_three", "_two"]


@pytest.mark.torch
def test_the_installed_torch_has_every_private_name() -> None:
    from trainshed.parallel.ground.torch_private import ABSENT, NAMES

    assert not ABSENT
    assert len(NAMES) <= MOST, "replace one by something public, or say in the commit why there are more"
    assert {name for name in used(tree_of(ALLOWED), made_here(tree_of(ALLOWED)), set()) if name not in PATHS} <= NAMES.keys()


@pytest.mark.torch
def test_a_name_that_is_missing_is_told_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.parallel.ground import torch_private
    from trainshed.parallel.ground.errors import PipelineError

    monkeypatch.setattr(torch_private, "NAMES", {})
    monkeypatch.setattr(torch_private, "ABSENT", [])
    missing: Any = torch_private._read(object, "_not_there", "telling what is missing")
    asks = (
        lambda: missing(3),
        lambda: missing.something,
        lambda: type("Derived", (), {}) if missing else None,
        lambda: new_class("Derived", (missing,)),
        lambda: torch_private.its(object(), "_not_there"),
    )
    for ask in asks:
        with pytest.raises(RuntimeError, match=r"torch \d.* has no _not_there, .* telling what is missing .*2\.9") as told:
            ask()
        assert isinstance(told.value, PipelineError)
    assert torch_private.ABSENT == ["_not_there"]
