"""`trainshed.resumable`: a lost rank alone is started again, the others live on, and the losses stay what they were."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
from pathlib import Path

import pytest

from jobs.checkpoint.test_memory_jobs import losses, starts
from support.notice_jobs import TRAINING, Train

pytestmark = [pytest.mark.torch, pytest.mark.safety]

MEMORY = json.dumps({"every_steps": 1})
STEPS = 30
HEAD, BODY = TRAINING.replace("% 10", "% 1").replace("1000000", str(STEPS)).split("torch.set_num_threads(1)\n")
STEP = "    if checkpointer.step(step):"
# `life` counts from 0. A step of the loop may be struck before it ends.
LIFE = "life = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nprint(f'pid rank={rank} life={life} {os.getpid()}', flush=True)\n"
KILL = "    if (life, rank, step) in KILLS:\n        os.kill(os.getpid(), 9)\n"


def script(*kills: tuple[int, int, int], strike: str = KILL, before: str = "", inside: str = "", after: str = "") -> str:
    """The loop inside of a resumable function; (life, rank, step) of each kill."""
    body = BODY.replace("torch.manual_seed(7)\n", f"{LIFE}torch.manual_seed(7)\n").replace(STEP, f"{strike}{STEP}")
    return (
        f"KILLS = {list(kills)}\n{HEAD}import trainshed\n{before}@trainshed.resumable\ndef train():\n    global world\n"
        f"{textwrap.indent(inside + body, '    ')}train()\n{after}"
    )


def pids(output: str) -> dict[int, list[str]]:
    """The processes that each rank was, in the order of its lives."""
    found: dict[int, list[str]] = {}
    for rank, life, pid in re.findall(r"pid rank=(\d) life=(\d+) (\d+)", output):
        assert int(life) == len(found.setdefault(int(rank), [])), output
        found[int(rank)].append(pid)
    return found


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], set[str]]:
    """The losses of three ranks that nothing disturbs."""
    with Train(tmp_path_factory.mktemp("straight"), script(), ranks=3, warm_start="auto", max_restarts=1) as train:
        assert train.end() == 0, train.output
    assert len(losses(train.output)) == 3 * STEPS
    return losses(train.output)


@pytest.mark.exact
@pytest.mark.spine
def test_the_others_live_on_and_the_losses_stay(tmp_path: Path, straight: dict[tuple[str, int], set[str]]) -> None:
    """Rank 0, at whose store the ranks meet, is among the lost ones."""
    kills = [(0, 1, 9), (1, 0, 15), (2, 2, 16)]
    with Train(
        tmp_path, script(*kills), ranks=3, warm_start="auto", max_restarts=4, checkpoint_memory=MEMORY
    ) as train:
        assert train.end() == 0, train.output
    assert losses(train.output) == straight
    for rank, lives in pids(train.output).items():
        for life, (before, after) in enumerate(zip(lives, lives[1:], strict=False)):
            assert (before != after) == (kills[life][1] == rank), train.output
    for first, (_, _, step) in zip(starts(train.output)[1:], kills, strict=True):
        assert first in (step - 2, step - 1), train.output
    restarts = train.record()["restarts"]
    assert [one["reason"].partition("; ")[2] for one in restarts] == [f"rank {rank} replaced in place" for _, rank, _ in kills]
    assert "restart 3 of 4, resuming from step" in train.output
