"""The text of emitted files."""

from __future__ import annotations

import ast
import builtins
from types import SimpleNamespace
from typing import Any

import pytest

from support.lazy import Lazy

cuts = Lazy("trainshed.parallel.emit.cuts")
nn = Lazy("torch.nn")
torch: Any = Lazy("torch")
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


class Mesh(dict[str, Any]):
    """Of two ranks in stages, of which this process is the first."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.mesh = torch.arange(2).reshape(1, 1, 2, 1)

    def __missing__(self, name: str) -> Any:
        return SimpleNamespace(get_group=lambda: SimpleNamespace(size=lambda: 1))

    def get_local_rank(self, name: str) -> int:
        return 0


def stages_alone(model: Any) -> tuple[Any, list[Any]]:
    """The step of a file of two stages with four microbatches, in this process; and what it sums over ranks."""
    found = cuts.Cuts({"0": (0, 0, 0), "1": (1, 0, 0)}, [[("0", 0)]], [{0: "0.weight", 1: "1.weight"}])
    file: dict[str, Any] = {}
    exec(writing.text_of(writing.Parts(stages=2, schedule="Schedule1F1B", microbatches=4, cuts=found)), file)
    summed: list[Any] = []
    told = {"new_group": lambda ranks: ranks, "get_rank": lambda: 0, "broadcast": lambda *_, **__: None}
    file["dist"] = SimpleNamespace(all_reduce=lambda gradient, group: summed.append(gradient.clone()), **told)
    file["PipelineStage"] = lambda stage, *_, **__: stage
    file["Schedule1F1B"] = lambda *_, **__: SimpleNamespace(step=lambda **_: None)
    file["ranks_as_mesh"] = Mesh
    return file["parallelize"](model, lambda _: None)[2], summed


@pytest.mark.parametrize("trains", [False, True])
def test_a_shared_weight_is_summed_where_it_trains_though_a_stage_does_not_reach_it(trains: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(trains)
    step, summed = stages_alone(model)
    step({"x": torch.ones(8, 2)})
    assert [one.tolist() for one in summed] == [[[0, 0], [0, 0]]] * trains


@pytest.mark.parametrize(("rows", "targets"), [(6, 8), (8, 6)])
def test_rows_that_microbatches_do_not_divide_are_refused_in_words(rows: int, targets: int) -> None:
    step, _ = stages_alone(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    step({"x": torch.ones(8, 2), "scale": torch.tensor(1.0), "name": "x"}, torch.ones(8))
    name = "x" if rows == 6 else "targets"
    with pytest.raises(SystemExit, match=rf"^{name} has 6 rows a replica, which are not a multiple of 4 microbatches: give"):
        step({"x": torch.ones(rows, 2)}, torch.ones(targets))
