"""`trainshed_max_restarts`: a script that fails is started again and goes on from its newest checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.notice_jobs import TRAINING, Train

pytestmark = pytest.mark.safety

# Fails once at each step that is named in FAIL_AT, the first time it gets there.
CRASHING = """\
import os, sys
from pathlib import Path
folder = Path(os.environ["SM_CHECKPOINT_DIR"])
folder.mkdir(exist_ok=True)
start = max([int(path.name[5:]) for path in folder.iterdir()], default=0)
print(f"start {start} attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
for step in range(start + 1, 31):
    if str(step) in os.environ["FAIL_AT"].split() and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 9:
        if not (folder / f"step-{step - 1}").exists():
            (folder / f"step-{step - 1}").mkdir()
            raise RuntimeError(f"bad luck at step {step}")
"""


@pytest.mark.spine
def test_a_failed_script_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    with Train(tmp_path, CRASHING, ranks=1, max_restarts=5, env={"FAIL_AT": "5 12 20"}) as job:
        assert job.end() == 0, job.output
    assert [line for line in job.lines if line.startswith("start")] == [
        "start 0 attempt 0",
        "start 4 attempt 1",
        "start 11 attempt 2",
        "start 19 attempt 3",
    ]
    restarts = job.record()["restarts"]
    assert ["bad luck at step 5" in one["reason"] for one in restarts] == [True, False, False]
    assert "restart 2 of 5, resuming from step 11: " in job.output
    assert (tmp_path / "output/success").exists()
    assert not (tmp_path / "output/failure").exists()


def test_restarts_end_when_the_budget_is_used_up(tmp_path: Path) -> None:
    with Train(tmp_path, CRASHING, ranks=1, max_restarts=2, env={"FAIL_AT": "5 12 20"}) as job:
        assert job.end() == 1, job.output
    assert "not restarted: all 2 restarts are used up" in job.output
    assert "bad luck at step 20" in (tmp_path / "output/failure").read_text()


def test_three_failures_without_a_newer_checkpoint_end_the_job(tmp_path: Path) -> None:
    with Train(tmp_path, "raise SystemExit(3)\n", ranks=1, max_restarts=100) as job:
        assert job.end() == 3, job.output
    assert sum("restart " in line and " of 100" in line for line in job.lines) == 2
    assert "not restarted: 3 failures in a row without a newer checkpoint" in job.output


def test_a_stop_signal_is_no_reason_to_restart(tmp_path: Path) -> None:
    with Train(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(60)\n", max_restarts=5) as job:
        job.until("up")
        job.signal(signal.SIGTERM)
        assert job.end() == 128 + signal.SIGTERM
    assert "restart" not in job.output


@pytest.mark.exact
@pytest.mark.torch
def test_a_killed_rank_brings_the_job_back_at_the_newest_checkpoint_with_the_same_losses(tmp_path: Path) -> None:
    # Every step says its loss. What follows the newest checkpoint is done twice, before the kill and after it.
    script = TRAINING.replace("every_seconds=3600", "every_steps=20").replace("step % 10", "step % 1")
    script = script.replace(
        "    if checkpointer.step(step):",
        "    if step == 37 and rank == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        checkpointer.wait()\n"
        "        os.kill(os.getpid(), 9)\n"
        "    if checkpointer.step(step):",
    )
    with Train(tmp_path, script, ranks=2, max_restarts=1, env={"STEPS": "40"}) as job:
        assert job.end() == 0, job.output
    assert "restart 1 of 1, resuming from step 20: " in job.output
    assert {line for line in job.lines if "start rank=" in line and "step=20" in line}
    losses: dict[str, list[str]] = {}
    for line in job.lines:
        if "loss rank=" in line:
            rank_and_step, _, loss = line[line.index("rank=") :].rpartition(" ")
            losses.setdefault(rank_and_step, []).append(loss)
    assert {name: len(set(found)) for name, found in losses.items()} == {
        f"rank={rank} step={step}": 1 for rank in range(2) for step in range(1, 41)
    }
    assert all(len(losses[f"rank=1 step={step}"]) == 2 for step in range(21, 37)), "before the kill and after it"
