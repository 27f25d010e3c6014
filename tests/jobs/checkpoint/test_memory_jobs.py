"""Whole jobs whose ranks are killed: they go on from the hosts' memory, which is free again when `train` has ended."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from support.hosts import Hosts, ended
from support.notice_jobs import TRAINING, Train, wait_for
from trainshed.machine.scratch import SHARED_MEMORY

pytestmark = [pytest.mark.torch, pytest.mark.safety]

MEMORY = json.dumps({"every_steps": 1})
STEPS = 40
# In attempt n the rank of the n-th pair kills itself after the step of the pair, before that step's copy is made.
KILLED = TRAINING.replace("% 10", "% 1").replace(
    "    if checkpointer.step(step):",
    "    if [rank, step] == KILLS.get(int(os.environ['TORCHELASTIC_RESTART_COUNT'])):\n"
    "        os.kill(os.getpid(), 9)\n"
    "    if checkpointer.step(step):",
)


def script(*kills: tuple[int, int]) -> str:
    return f"KILLS = { ({number: list(kill) for number, kill in enumerate(kills)}) }\n{KILLED}".replace(
        "1000000", str(STEPS)
    )


def losses(output: str) -> dict[tuple[str, int], set[str]]:
    """All losses that ranks have printed for a step."""
    found: dict[tuple[str, int], set[str]] = {}
    for rank, step, loss in re.findall(r"loss rank=(\d) step=(\d+) (\S+)", output):
        found.setdefault((rank, int(step)), set()).add(loss)
    return found


def starts(output: str) -> list[int]:
    """The steps from which rank 0 has gone on."""
    return [int(step) for step in re.findall(r"start rank=0 step=(\d+)", output)]


def in_memory(pid: int) -> list[Path]:
    """What a `train` keeps in memory."""
    return list(Path(SHARED_MEMORY).glob(f"trainshed-{pid}-*"))


@pytest.mark.exact
@pytest.mark.spine
def test_ranks_that_are_killed_lose_one_step_at_most_and_the_losses_stay(tmp_path: Path) -> None:
    with Train(tmp_path / "straight", script(), ranks=2, max_restarts=1) as train:
        assert train.end() == 0, train.output
        straight = losses(train.output)
    kills = [(1, 9), (0, 10), (1, 26), (0, 39)]
    with Train(tmp_path / "killed", script(*kills), ranks=2, max_restarts=4, checkpoint_memory=MEMORY) as train:
        assert train.end() == 0, train.output
    assert losses(train.output) == straight
    for first, (_, step) in zip(starts(train.output)[1:], kills, strict=True):
        assert first in (step - 2, step - 1), train.output  # one of the steps that `Checkpointer.step` has returned from
    assert [one["step"] for one in train.record()["restarts"]] == starts(train.output)[1:]
    assert in_memory(train.process.pid) == []
    assert list((tmp_path / "killed/checkpoints").iterdir()) == []


@pytest.mark.exact
def test_ranks_on_two_hosts_with_disks_of_their_own(tmp_path: Path) -> None:
    with Train(tmp_path / "straight", script(), ranks=2, max_restarts=1) as train:
        assert train.end() == 0, train.output
    kills = [(1, 9), (0, 25)]
    more = {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": 1, "trainshed_max_restarts": 3}
    with ended() as made:
        job = Hosts(tmp_path, ["127.0.0.2", "127.0.0.3"], script(*kills), more | {"trainshed_checkpoint_memory": MEMORY})
        made.append(job)
        job.start()
        assert job.exit_codes() == [0, 0], job.all_output()
    assert losses(job.all_output()) == losses(train.output)
    for first, (_, step) in zip(starts(job.output(0))[1:], kills, strict=True):
        assert first in (step - 2, step - 1), job.all_output()
    assert not any(in_memory(process.pid) for process in job.processes.values())
    assert "different newest checkpoints" not in job.all_output()


def test_memory_is_free_after_a_job_that_failed(tmp_path: Path) -> None:
    failing = script().replace("    if checkpointer.step(step):", "    assert step < 9\n    if checkpointer.step(step):")
    with Train(tmp_path, failing, max_restarts=5, checkpoint_memory=MEMORY) as train:
        assert train.end() == 1, train.output
    assert starts(train.output)[1:] == [8] * (len(starts(train.output)) - 1)
    assert "not restarted: 3 failures in a row without a newer checkpoint" in train.output
    assert "resuming from step 8" in train.output
    assert in_memory(train.process.pid) == []


def test_memory_is_free_after_train_was_killed(tmp_path: Path) -> None:
    with Train(tmp_path, TRAINING, max_restarts=1, checkpoint_memory=MEMORY) as train:
        train.until("loss rank=0 step=10 ")
        assert in_memory(train.process.pid)
        train.signal(signal.SIGKILL)
    wait_for(lambda: not in_memory(train.process.pid))
    assert in_memory(train.process.pid) == []
