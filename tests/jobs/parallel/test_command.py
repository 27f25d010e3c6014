"""`python -m trainshed.parallel.plan`, and a job that takes the file it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402

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


def test_a_script_without_a_step_gives_no_plan(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('nothing')")
    environment = {name: value for name, value in ranks.environment(0, 1, 0).items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "trainshed.parallel.plan", "-o", str(tmp_path / "plan.json"), str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 1
    assert "ended without a step" in done.stderr
    assert not (tmp_path / "plan.json").exists()
