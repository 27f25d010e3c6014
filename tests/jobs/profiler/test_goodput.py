"""Where the seconds of jobs went that were killed, started again and resumed: all views say the same, and sums are whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import Project, project
from trainshed.runner.api import find

__all__ = ["project"]

# Killed once, seven steps after a checkpoint that is durable.
MEASURED = """\
import os, time, torch
from torch.utils.data import DataLoader
from trainshed.checkpoint import Checkpointer
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpointer = Checkpointer.for_job(model=model, optimizer=optimizer, every_steps=10)
step = checkpointer.restore()
for batch in DataLoader(torch.ones(4 * (50 - step), 8), batch_size=4):
    model(batch).mean().backward()
    time.sleep(1.0 if step == 35 else 0.05)  # a window ends with this step
    optimizer.step()
    step += 1
    checkpointer.step(step)
    if step == 37 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        checkpointer.wait()
        os.kill(os.getpid(), 9)
checkpointer.close()
"""
# Without torch: fails in its first lives, is killed in its second, and comes to its end in its fifth one.
PLAIN = """\
import json, os, pathlib, time
saved = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
metrics = pathlib.Path(os.environ["SAGEMAKER_METRICS_DIRECTORY"])
saved.mkdir(exist_ok=True)
metrics.mkdir(parents=True, exist_ok=True)
lives = saved / ".lives"
life = int(lives.read_text()) if lives.exists() else 0
lives.write_text(str(life + 1))
start = max((int(path.name[5:]) for path in saved.glob("step-*")), default=0)
for step in range(start + 1, 13):
    time.sleep(0.03)
    with open(metrics / "mine.json", "a") as file:  # with its own time
        file.write(json.dumps({"MetricName": "loss", "Value": 1 / step, "Timestamp": time.time(), "Step": step}) + "\\n")
    if step % 4 == 0:
        (saved / f"step-{step}").touch()
    if life < 4 and step == (3, 6, 9, 11)[life]:
        time.sleep(0.3)
        assert life == 1, "no more"
        os.kill(os.getpid(), 9)
"""


def goodput(project: Project) -> dict[str, Any]:
    """As the run's status has it; its sums are whole, for each host and for each part."""
    done = project.command("status", "--json")
    found: dict[str, Any] = json.loads(done.stdout)["Trainshed"]["Goodput"]
    assert sum(found["Seconds"].values()) == pytest.approx(found["WallSeconds"], abs=1e-5)
    for host in found["Hosts"].values():
        assert sum(host.values()) == pytest.approx(found["WallSeconds"], abs=1e-5)
    parts = [sum(part["Seconds"].values()) for part in found["Parts"]]
    assert sum(parts) == pytest.approx(found["WallSeconds"], abs=1e-5)
    return found


def kinds(found: dict[str, Any]) -> Sequence[str]:
    return [part["Kind"] for part in found["Parts"]]


@pytest.mark.torch
def test_a_killed_rank_costs_what_it_costs_and_every_view_says_the_same(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write({"train.py": MEASURED, "job.yaml": "program: train.py\nprofile: auto\nhost_price: 36000\n"})
    done = project.trainshed("run", "job.yaml", "--hp", "trainshed_max_restarts=1")
    assert done.status == 0, done.stdout + done.stderr
    found = goodput(project)
    first, second = found["Parts"]

    assert kinds(found) == ["start", "restart"]
    assert "again" not in first["Seconds"] and second["Seconds"]["again"] > 0
    assert all(part["Seconds"][name] > 0 for part in (first, second) for name in ("importing", "steps", "checkpoint"))
    assert found["Cost"] == pytest.approx(10 * found["WallSeconds"], abs=0.001)

    card = f"goodput    {100 * found['Share']:.1f} % of "
    assert card in done.stderr and card in project.command("status").stdout
    assert (
        f"importing {100 * found['Losses'][0]['Share']:.1f} %" in done.stderr or found["Losses"][0]["Account"] != "importing"
    )
    (row,) = json.loads(project.command("ls", "--where", "goodput > 0", "--columns", "name,goodput", "--json").stdout)
    assert row["goodput"] == found["Share"]
    monkeypatch.chdir(project.folder)
    assert find(str(project.run)).goodput == found["Share"] and find(str(project.run)).ledger == found
    page = project.trainshed("report", str(project.run))
    assert page.status == 0 and f"goodput {100 * found['Share']:.1f} % of " in Path(project.run, "report.html").read_text()


def test_a_job_without_a_profile_is_told_by_its_metrics_over_all_that_befalls_it(project: Project) -> None:
    project.write({"train.py": PLAIN, "job.yaml": "program: train.py\nretries: 1\n"})
    done = project.trainshed("run", "job.yaml", "--hp", "trainshed_max_restarts=1")
    assert done.status != 0
    assert kinds(goodput(project)) == ["start", "restart", "attempt", "restart"]
    done = project.trainshed("resume")
    assert done.status == 0, done.stdout + done.stderr
    found = goodput(project)

    assert kinds(found) == ["start", "restart", "attempt", "restart", "resume"]
    assert [part["Seconds"].get("again", 0) > 0 for part in found["Parts"]] == [False, True, True, True, True]
    assert "importing" not in found["Seconds"] and found["Seconds"]["starting"] > 0


@pytest.mark.torch
def test_a_job_may_have_its_interval_found_whatever_the_script_says(project: Project) -> None:
    every = "auto,least=0.1s,most=0.2s,between=1h"
    project.write({"train.py": MEASURED.replace("step == 37", "step < 0")})
    project.write({"job.yaml": f'program: train.py\ncheckpoints: {{every: "{every}"}}\n'})
    done = project.trainshed("run", "job.yaml")

    assert done.status == 0, done.stdout + done.stderr
    assert "trainshed: a checkpoint every 0.2 s: one costs " in done.stderr
    assert "1 h 00 min lie between interruptions (as given)" in done.stderr
    assert {int(path.name[5:]) % 10 for path in (project.run / "checkpoints").glob("step-*")} != {0}
