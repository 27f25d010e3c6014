"""`trainshed plan --emit`: files of plain torch train as one process does, without trainshed, or are refused in words."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks

from support.lazy import Lazy

torch = Lazy("torch")
nn = Lazy("torch.nn")
small_modules = Lazy("small_modules")
calls = Lazy("trainshed.parallel.emit.calls")
cuts = Lazy("trainshed.parallel.emit.cuts")
foresight = Lazy("trainshed.parallel.engine.tensor.foresight")
planning = Lazy("trainshed.parallel.plan.planner")
settings = Lazy("trainshed.contract.wire.pipeline")
subjects = Lazy("trainshed.parallel.tracing.subject")
wishes = Lazy("trainshed.parallel.plan.plan_request")
writing = Lazy("trainshed.parallel.emit.writing")

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("emitted_script.py")
SHARDED = ["--settings", '{"sharded_data_parallel_degree": 2}']


def run(command: list[str], path: str) -> str:
    environment = {**ranks.environment(0, 1, 0), "PYTHONPATH": path}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        environment.pop(name)
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def apart(folder: Path, model: str, world: int, options: list[str]) -> float:
    """How far the losses of an emitted file are from one process."""
    file = folder / "parallel.py"
    plan = ["-m", "trainshed.parallel.plan", "--emit", str(file), "-o", str(folder / "plan.json"), *options]
    run([*plan, str(SCRIPT), model], ranks.environment(0, 1, 0)["PYTHONPATH"])
    assert not {name for name in imported(file.read_text()) if name not in sys.stdlib_module_names} - {"torch"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    printed = run([*torchrun, str(SCRIPT), model, str(file)], "")
    return float(printed.partition("APART ")[2].split()[0])


def imported(text: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(text)):
        found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names |= {name.partition(".")[0] for name in found}
    return names


@pytest.mark.exact
@pytest.mark.parametrize("options", [["--stages", "2"], ["--stages", "1", "--tensor", "2"]])
def test_a_shared_weight_that_does_not_train_is_no_hindrance(tmp_path: Path, options: list[str]) -> None:
    assert apart(tmp_path, "frozen", 2, options) < 1e-6


@pytest.mark.spine
@pytest.mark.exact
def test_stages_of_an_emitted_file_train_as_one_process_without_trainshed(tmp_path: Path) -> None:
    assert apart(tmp_path, "tied", 4, ["--stages", "2"]) < 1e-6


WAYS: dict[str, tuple[int, list[str]]] = {
    "replicas": (2, ["--stages", "1"]),
    "optimizer": (2, ["--stages", "1", "--settings", '{"shard_optimizer_state": true}']),
    "shards": (4, ["--stages", "1", *SHARDED]),
    "stages": (2, ["--stages", "2"]),
    "three stages": (3, ["--stages", "3", "--pipeline", "simple"]),
    "tensor": (2, ["--stages", "1", "--tensor", "2"]),
    "tensor, replicas": (4, ["--stages", "1", "--tensor", "2"]),
    "tensor, shards": (4, ["--stages", "1", "--tensor", "2", *SHARDED]),
    "stages, tensor, replicas": (8, ["--stages", "2", "--tensor", "2"]),
}


# Each way with one model at least, each model with stages and shards.
CASES = [
    *((model, way) for model in ("gpt2", "llama", "t5", "mixtral") for way in ("shards", "stages")),
    *(("llama", way) for way in ("tensor", "tensor, shards", "stages, tensor, replicas")),
    *(("t5", way) for way in ("three stages", "tensor, replicas", "stages, tensor, replicas")),
    *(("mixtral", way) for way in ("replicas", "optimizer")),
]


@pytest.mark.heavy
@pytest.mark.exact
@pytest.mark.parametrize(("model", "way"), CASES)
def test_models_of_transformers_train_as_in_one_process(tmp_path: Path, model: str, way: str) -> None:
    world, options = WAYS[way]
    assert apart(tmp_path, model, world, options) < 1e-6


@pytest.mark.heavy
@pytest.mark.parametrize(("model", "kind"), [("gpt2", "Conv1D"), ("mixtral", "MixtralExperts")])
def test_modules_of_transformers_that_torch_does_not_divide_are_named(tmp_path: Path, model: str, kind: str) -> None:
    with pytest.raises(AssertionError, match=f"is a {kind}: torch's styles divide nn.Linear"):
        apart(tmp_path, model, *WAYS["tensor"])


# In this process ----------------------------------------------------------------------------------------------------------


def step(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    model.backward(loss)
    return loss


def parts(module: nn.Module, stages: int = 1, tensor: int = 1, rows: int = 4, **given: Any) -> Any:
    """The parts of a file for a module that is called with `rows` rows of 8."""
    holder = small_modules.Holder(module)
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(0))
    subject = subjects.Subject(module, step, lambda handler: setattr(holder, "handler", handler), (holder, x))
    schedule = given.pop("schedule", "1f1b")
    wish = wishes.Wish(ranks=stages, tensor=tensor, schedule=schedule, atomic=cuts.whole_blocks(module))
    found = foresight.foresee(subject, [tensor], lambda module: True, ()) if tensor > 1 else None
    plan = planning.make_plan(subject, wish, found and (lambda *_: found))
    read = settings.read_settings({"pipeline_parallel_degree": stages, **given}, "")
    return writing.parts_of(subject, plan, read, found.pieces if found else ())


def line(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *more, nn.Linear(16, 8))


def frozen() -> nn.Module:
    module = wide()
    module[0].requires_grad_(False)
    return module


def wide() -> nn.Module:
    return line(nn.Linear(16, 16))


def test_what_goes_from_columns_to_rows_stays_in_parts_where_that_is_as_exact() -> None:
    assert dict(parts(line(), tensor=2).styles) == {"0": "ColwiseParallel()", "2": "RowwiseParallel()"}
    gathered = "ColwiseParallel(output_layouts=Replicate())"
    assert dict(parts(small_modules.Scaled(), tensor=2).styles) == {"up": gathered, "down": gathered}


def test_what_a_later_stage_reads_again_is_sent_along() -> None:
    (sent,) = parts(small_modules.Computed(), stages=2).cuts.crossing
    assert sent in ([("lines.0", 0)], [("lines.0", 0), ("lines.1", 0)])  # as the times of the modules decide


@pytest.mark.parametrize(("module", "given", "message"), [
    (lambda: line(nn.BatchNorm1d(16)), {}, "'2' normalizes by the rows of its rank alone"),
    (lambda: line(nn.Dropout(0.5)), {"tensor": 2}, "the forward draws random numbers"),
    (lambda: small_modules.Twice(), {"stages": 2}, "'one' is called several times"),
    (lambda: small_modules.ReadBetween(), {"stages": 2}, "'place' is read between modules"),
    (frozen, {"stages": 3, "microbatches": 4}, "has nothing to train"),
    (wide, {"stages": 2, "schedule": "interleaved1f1b"}, "the schedule interleaved1f1b"),
    (line, {"bf16": True}, "the file has no bf16"),
    (line, {"context_parallel_degree": 2, "prescaled_batch": True}, "context_parallel_degree: torch divides"),
    (wide, {"stages": 2, "sharded_data_parallel_degree": 2}, "stages whose parameters are sharded"),
])  # fmt: skip
def test_what_torch_cannot_do_as_exactly_is_refused_in_words(
    module: Callable[[], nn.Module], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(calls.NotEmitted, match=message):
        parts(module(), **given)
