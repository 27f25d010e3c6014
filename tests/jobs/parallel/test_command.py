"""`python -m trainshed.parallel.plan`, and a job that takes the file it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

pytestmark = pytest.mark.torch

SCRIPT = """
import sys, torch
from torch import nn
import trainshed.parallel as pipe

pipe.init({"pipeline_parallel_degree": 2, "microbatches": 2, "partition_file": sys.argv[1]})
model = pipe.PipelineModel(nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)]))

@pipe.step
def step(model, x):
    loss = model(x).sum()
    model.backward(loss)
    return loss

step(model, torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))
print("STARTS", model.plan.starts(), flush=True)
"""


@pytest.mark.spine
def test_a_plan_is_written_without_ranks_edited_and_used_by_the_job(tmp_path: Path) -> None:
    script, plan = tmp_path / "script.py", tmp_path / "plan.json"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in ranks.environment(0, 1, 0).items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "trainshed.parallel.plan", "--stages", "2", "-o", str(plan), str(script), str(plan)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "Partition assignments:" in done.stdout
    data = json.loads(plan.read_text())
    assert [unit["unit"] for unit in data["units"]] == ["0", "1", "2", "3"]
    for number, unit in enumerate(data["units"]):
        unit["stage"] = int(number == 3)
    plan.write_text(json.dumps(data))
    assert all("STARTS (0, 3)" in output for output in ranks.run_script(2, str(script), str(plan)))


LARGE = """
import torch
from torch import nn
import trainshed.parallel as pipe

pipe.init({"pipeline_parallel_degree": 2})
with pipe.delayed_initialization():
    layers = nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(40)])
model = pipe.PipelineModel(layers)

@pipe.step
def step(model, x):
    loss = model(x).sum()
    model.backward(loss)
    return loss

step(model, torch.randn(4096, 8192))
"""


def test_a_model_larger_than_memory_is_planned_by_counting(tmp_path: Path) -> None:
    script, plan = tmp_path / "script.py", tmp_path / "plan.json"
    script.write_text(LARGE)
    environment = {name: value for name, value in ranks.environment(0, 1, 0).items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "trainshed.parallel.plan", "--count", "--ranks", "4", "--memory-limit", "14000"]
    command += ["-o", str(plan), str(script)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, output
    assert "chosen: {pipeline_parallel_degree: 4, microbatches: 4}" in output
    assert "note: operations were counted, not timed" in output
    data = json.loads(plan.read_text())
    assert [sum(unit["stage"] == stage for unit in data["units"]) for stage in range(4)] == [10, 10, 10, 10]
    # 10 layers of 8192 x 8192 with gradients and AdamW's states, 16 bytes each; on a GPU a step makes 4 more.
    assert all(stage["memory_mib"] > 10 * 8192 * 8192 * 16 / 2**20 for stage in data["predicted"]["stages"])
    assert usage.ru_maxrss < 2 * 2**20  # KiB: a fifth of the parameters alone


def test_a_script_without_a_step_gives_no_plan(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('nothing')")
    environment = {name: value for name, value in ranks.environment(0, 1, 0).items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "trainshed.parallel.plan", "-o", str(tmp_path / "plan.json"), str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 1
    assert "ended without a step" in done.stderr
    assert not (tmp_path / "plan.json").exists()
