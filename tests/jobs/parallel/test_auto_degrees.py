"""Jobs that leave their degrees to be chosen (`degrees = auto`): what is chosen trains as one process does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import ranks

from support.lazy import Lazy
from support.runner_project import Project, project  # noqa: F401

closeness: Any = Lazy("closeness")
pytestmark = pytest.mark.torch
HEAVY = pytest.mark.heavy

# 2 MiB of parameters, 8 with gradients and AdamW's states.
SCRIPT = """
import json, os, sys, time
import torch
from torch import nn
import trainshed.parallel as pipe

counts, rank = "TRAINSHED_PLAN_ONLY" in os.environ, os.environ["RANK"]
trouble = os.environ.get("TROUBLE", "")
given = {"degrees": "given"} if trouble == "rank 1 knows them" and rank == "1" else {}
if trouble == "rank 1 reads other settings":
    given = {"microbatches": 1 + int(rank)}
pipe.init({**json.loads(os.environ["TRAINSHED_PIPELINE"]), **given})
if counts and trouble == "it fails":
    raise ValueError("no data here")
if counts and trouble == "it ends":
    sys.exit(0)
if counts and trouble == "it sleeps":
    print("SLEEPS", flush=True)
    time.sleep(1000)
torch.manual_seed(0)
model = pipe.PipelineModel(nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]))
optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.001))

@pipe.step
def step(model, x):
    loss = model(x).square().mean()
    model.backward(loss)
    return loss

for number in range(3):
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(number)).chunk(pipe.rdp_size())[pipe.rdp_rank()]
    optimizer.zero_grad()
    loss = step(model, x).reduce_mean()
    optimizer.step()
    print(f"LOSS {pipe.rdp_rank()} {number} {float(loss)}.", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def losses(output: str) -> list[float]:
    """Of each step, the mean over the replicas."""
    found: dict[int, dict[str, float]] = {}
    for replica, number, loss in re.findall(r"LOSS (\d+) (\d+) (\S+)\.(?:\s|$)", output):
        found.setdefault(int(number), {})[replica] = float(loss)
    return [sum(replicas.values()) / len(replicas) for _, replicas in sorted(found.items())]


def environment(settings: dict[str, Any], **more: str) -> dict[str, str]:
    return {"TRAINSHED_PIPELINE": json.dumps(settings), "PYTHONHASHSEED": "0", **more}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process."""
    path = tmp_path_factory.mktemp("alone") / "script.py"
    path.write_text(SCRIPT)
    (log,) = ranks.run_script(1, str(path), extra=environment({"microbatches": 1}))
    found = losses(log)
    assert len(found) == 3
    return found


JOB = """\
program: script.py
distribution: {kind: pipeline, processes_per_host: 4, parameters: {degrees: auto, memory_limit: 500}}
"""


@pytest.mark.spine
@pytest.mark.exact
def test_a_job_file_leaves_its_degrees_to_be_chosen(project: Project, alone: list[float]) -> None:  # noqa: F811
    project.write({"script.py": SCRIPT, "job.yaml": JOB})
    done = project.trainshed("run", "job.yaml")
    assert done.status == 0, done.output
    closeness.assert_trained_alike(losses(done.output), alone, rtol=1e-5)
    assert done.output.count("degrees: ") == 1 and "of 500 MiB on the fullest rank" in done.output
    path = project.run / "algo-1" / "output" / "data" / "pipeline-plan.json"
    plan = json.loads(path.read_text())
    assert plan["degrees"]["stages"] * plan["degrees"]["tensor"] * plan["degrees"]["replicas"] == 4
    assert plan["considered"] and plan["predicted"]["chosen"]["memory_mib"] < 500


@pytest.mark.exact
@pytest.mark.parametrize(("given", "words"), [
    ({"memory_limit": 4}, ""),
    pytest.param(
        {"memory_limit": 6, "sharded_data_parallel_degree": 1, "tensor_parallel_degree": 1}, "stages with", marks=HEAVY
    ),
    pytest.param(
        {"tensor_parallel_degree": 2, "partitions": 2}, "2 stages of 2 tensor ranks with 1 replica", marks=HEAVY
    ),
    pytest.param(
        {"partitions": 2, "pipeline": "simple", "microbatches": 2}, "microbatches: 2, pipeline: simple", marks=HEAVY
    ),
    pytest.param(
        {"partitions": 1, "sharded_data_parallel_degree": 4, "microbatches": 1}, "all sharded by 4", marks=HEAVY
    ),
])  # fmt: skip
def test_what_is_given_stays_and_memory_forces_a_division(
    script: str, alone: list[float], given: dict[str, Any], words: str
) -> None:
    logs = ranks.run_script(4, script, extra=environment({"degrees": "auto", **given}))
    line = next(line for line in logs[0].splitlines() if line.startswith("degrees: "))
    assert words in line
    predicted = float(re.findall(r"([\d.]+) of \d+ MiB", line)[-1])
    assert predicted <= given.get("memory_limit", 1000)
    closeness.assert_trained_alike(losses("\n".join(logs)), alone, rtol=1e-5)


@pytest.mark.exact
def test_a_job_that_starts_again_keeps_its_degrees_where_it_has_as_many_ranks(script: str, tmp_path: Path) -> None:
    settings = environment({"degrees": "auto", "partitions": 2}, SM_CHECKPOINT_DIR=str(tmp_path))
    first, second = (ranks.run_script(2, script, extra=settings) for _ in range(2))
    assert "predicted by counting" in first[0]
    assert f"as in {tmp_path}/pipeline-plan.json: delete it to have them chosen again" in second[0]
    assert losses("\n".join(first)) == losses("\n".join(second))
    other = ranks.run_script(1, script, extra=environment({"degrees": "auto"}, SM_CHECKPOINT_DIR=str(tmp_path)))
    assert "degrees: 1 stage with 1 replica" in other[0]


@pytest.mark.parametrize(("settings", "trouble", "words"), [
    ({}, "it fails", "script.py cannot be planned: ValueError: no data here (give the degrees"),
    pytest.param({}, "it ends", "script.py cannot be planned", marks=HEAVY),
    ({"timeout_seconds": 50}, "it sleeps", "script.py came to no step within 25 s (what it does before"),
    ({}, "rank 1 knows them", "the ranks differ in their settings: degrees is 'given' on rank 1, 'auto' on rank 0"),
    pytest.param(
        *({}, "rank 1 reads other settings", "the ranks differ in their settings: microbatches is 2 on rank 1, 1 on rank 0"),
        marks=HEAVY,
    ),
    ({"memory_limit": 1}, "", "no way to use these ranks needs less than 1 MiB on each"),
])  # fmt: skip
def test_where_nothing_can_be_chosen_all_ranks_say_why(
    script: str, settings: dict[str, Any], trouble: str, words: str
) -> None:
    extra = environment({"degrees": "auto", **settings}, TROUBLE=trouble)
    ends = ranks.play_script(2, script, extra=extra)
    assert all(words in one.log for one in ends), "\n".join(one.log for one in ends)
    assert all(one.status for one in ends)
