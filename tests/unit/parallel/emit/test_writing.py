"""The text of emitted files."""

from __future__ import annotations

import ast
import builtins

import pytest

from support.lazy import Lazy

cuts = Lazy("trainshed.parallel.emit.cuts")
nn = Lazy("torch.nn")
writing = Lazy("trainshed.parallel.emit.writing")

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("given", [
    {}, {"optimizer": True}, {"unused": True}, {"sharded": 2, "wrapped": "*model.blocks"},
    {"tensor": 2, "styles": {"head": "ColwiseParallel()"}, "ties": [("head.weight", "blocks.0.weight")]},
])  # fmt: skip
def test_each_file_is_python_that_knows_all_its_names(given: dict[str, object]) -> None:
    check(writing.text_of(writing.Parts(**given)))


@pytest.mark.parametrize("tensor", [1, 2])
def test_so_is_one_of_stages(tensor: int) -> None:
    found = cuts.Cuts({"a": (0, 0, 8), "b": (1, 2, 0)}, [[("a", 0)]], [{0: "a.weight", 1: "b.weight"}])
    styles = {"a": "ColwiseParallel()"} if tensor > 1 else {}
    text = writing.text_of(writing.Parts(stages=2, tensor=tensor, schedule="Schedule1F1B", cuts=found, styles=styles))
    check(text)
    assert '    "a": (0, 0, 8),\n' in text and '    [("a", 0)],\n' in text


def check(text: str) -> None:
    """Names that are read are defined somewhere in the file, and what is imported is read."""
    tree, names = ast.parse(text), [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    taken = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
    assert read - made - taken - set(dir(builtins)) == set()
    assert taken - read - {"annotations", "ColwiseParallel", "RowwiseParallel"} == set()
    assert max(map(len, text.splitlines())) <= 125


def test_one_line_says_the_style_of_all_blocks_that_have_the_module() -> None:
    root = nn.ModuleDict({"a": nn.ModuleList(nn.ModuleDict({"b": nn.Linear(2, 2), "c": nn.Linear(2, 2)}) for _ in range(2))})
    styles = {"a.0.b": "columns", "a.1.b": "columns", "a.0.c": "columns", "a.1.c": "rows"}
    assert writing.in_short(styles, root) == {"a.*.b": "columns", "a.0.c": "columns", "a.1.c": "rows"}
