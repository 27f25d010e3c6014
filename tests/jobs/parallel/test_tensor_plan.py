"""Plans that count on tensor groups: what they say is divided is what ranks divide."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import ranks

from support.lazy import Lazy

torch = Lazy("torch")
shapes = Lazy("trainshed.parallel.delayed.shapes")
foresight = Lazy("trainshed.parallel.engine.tensor.foresight")
subjects = Lazy("trainshed.parallel.tracing.subject")
small_modules = Lazy("small_modules")

pytestmark = pytest.mark.torch

TWO_BY_TWO = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2}


@pytest.mark.spine
@pytest.mark.on_ranks("plan_workers:divided_as_planned", TWO_BY_TWO, world=4)
def test_a_job_plans_with_the_parts_that_its_ranks_then_have(found: list[Any]) -> None:
    divided = sorted({name for one in found for name in one["divided"]})
    assert found[0]["planned"] == divided
    assert {"table", "head", "blocks.0.0", "blocks.3.2"} <= set(divided)
    assert found[0]["whole"].keys() == {"narrow", "wide"}
    assert found[0]["whole"]["narrow"] == "whole: 1 features do not make 2 parts"
    assert "also read by sum()" in found[0]["whole"]["wide"]
    for one in found:
        assert one["degrees"] == {
            "stages": 2, "tensor": 2, "replicas": 1, "sharded": 1, "shard_optimizer_state": False,
        }  # fmt: skip
    # The first rank of each group has the largest parts, of which a plan tells.
    for rank in (0, 2):
        assert found[rank]["mib"] == pytest.approx(found[rank]["planned mib"], abs=0.01)


SCRIPT = """
import torch
from torch import nn
import trainshed.parallel as pipe

pipe.init()
torch.manual_seed(0)
model = pipe.PipelineModel(nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]))
optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters()))

@pipe.step
def step(model, x):
    loss = model(x).square().mean()
    model.backward(loss)
    return loss

x = torch.randn(16, 1024, generator=torch.Generator().manual_seed(1)).chunk(pipe.rdp_size())[pipe.rdp_rank()]
loss = step(model, x).reduce_mean()
print("LOSS", pipe.rdp_rank(), float(loss), flush=True)
"""


def planned(folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    script, plan = folder / "script.py", folder / "plan.json"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in ranks.environment(0, 1, 0).items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "trainshed.parallel.plan", "--count", *options, "-o", str(plan), str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    return done.stdout + done.stderr, json.loads(plan.read_text()) if plan.exists() else {}


def test_tensor_groups_are_chosen_where_memory_asks_for_them_and_their_settings_run(tmp_path: Path) -> None:
    # 32 MiB of parameters, 128 with gradients and states: 4 ranks of 50 MiB are stages or parts, and not replicas. Gradients
    # that are summed lie in buckets, too: 48 MiB where each of 4 ranks has a part.
    quick = ("--ranks", "4", "--gbits", "10000", "--microbatches", "2", "--tflops", "0.001")
    output, plan = planned(tmp_path, *quick, "--ranks-per-host", "2", "--memory-limit", "50")
    plain = [one for one in plan["considered"] if one["sharded"] == 1 and not one["shard_optimizer_state"]]
    rows = {(one["stages"], one["tensor"], one["replicas"]): one for one in plain}
    assert rows[1, 4, 1]["problem"] == "a tensor group would span hosts, which have 2 ranks each"
    assert rows[2, 1, 2]["problem"].startswith("more than 50 MiB")
    assert rows[2, 2, 1]["memory_mib"] < 50 and rows[2, 2, 1]["step_ms"] < rows[4, 1, 1]["step_ms"]
    chosen = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2, "prescaled_batch": True, "microbatches": 2}
    assert plan["settings"] == chosen
    assert "prescaled_batch: true, microbatches: 2}; all ranks have the same batch" in output
    assert plan["degrees"]["tensor"] == 2 and plan["divided"]["0.0"] == "512 of 1024 features"
    assert "  N.N (8): 512 of 1024 features" in output
    assert "   3     1       1       2 of 2        0" in output  # who holds what
    settings = {"TRAINSHED_PIPELINE": json.dumps({**chosen, "partition_file": str(tmp_path / "plan.json")})}
    logs = ranks.run_script(4, str(tmp_path / "script.py"), extra=settings)
    alone = ranks.run_script(1, str(tmp_path / "script.py"), extra={"TRAINSHED_PIPELINE": '{"microbatches": 4}'})
    losses = {float(line.split()[2]) for log in [*logs, *alone] for line in log.splitlines() if line.startswith("LOSS")}
    assert max(losses) == pytest.approx(min(losses), rel=1e-6) and len(logs) == 4


@pytest.mark.parametrize(("options", "words"), [
    (["--ranks", "4", "--tensor", "2"], "--ranks chooses the tensor ranks"),
    (["--ranks", "4", "--gbits-host", "100"], "--gbits-host needs --ranks-per-host"),
    (["--ranks", "6", "--ranks-per-host", "4"], "6 ranks do not make hosts of 4"),
    (["--ranks", "4", "--cores", "2"], "--cores needs --ranks-per-host"),
    (["--ranks", "4", "--settings", "[1]"], r"--settings \[1\] is not a JSON object"),
    (["--ranks", "4", "--tflops", "0"], "must be more than 0"),
])  # fmt: skip
def test_options_that_do_not_go_together_are_refused_before_the_script_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], words: str
) -> None:
    from trainshed.base.errors import TrainshedError
    from trainshed.parallel.plan.command import main

    (tmp_path / "script.py").write_text("raise SystemExit(7)")
    with pytest.raises(TrainshedError, match=words):
        main([*options, str(tmp_path / "script.py")])


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_plan_sees_pairs_as_a_job_does(counts: bool, whole: bool) -> None:
    model = small_modules.Between(whole=whole)
    subject = subjects.Subject(
        model, lambda x: model(x).square().mean(), lambda handler: None, (torch.randn(4, 8),), counts=counts
    )
    with shapes.ShapesOnly(model.parameters()) if counts else nullcontext():
        foreseen = foresight.foresee(subject, (2, 4, 3), lambda module: True, ())
    pieces = foreseen.pieces
    seen = {one.module: (one.opens, one.closes) for one in pieces}
    every, none = (2, 4, 3), ()
    pairs = {"up": (every, none), "down": (none, every), "out": (none, none)}
    later = {"up": (none, none), "down": (every, none), "out": (none, every)}  # `up` is gathered: another pair is seen then
    assert seen == (later if whole else pairs)
    along = {one.module: (one.along, one.takes) for one in pieces}
    # Of 4 rows the last of 3 ranks would have none; what is averaged in the end is whole.
    given, taken = ((2, 4), none), (none, (2, 4))
    tokens = {"up": given, "down": taken} if whole else {"down": given, "out": taken}
    assert along == {**dict.fromkeys(along, (none, none)), **tokens}
    assert foreseen.kept[4] < foreseen.kept[2] < 1 and foreseen.kept[3] < 1
    assert all(one.calls and not one.reason for one in pieces)
    assert "forward" not in model.up.__dict__
