"""`trainshed.resumable`: a lost rank alone is started again, the others live on, and the losses stay what they were."""

from __future__ import annotations

import itertools
import json
import re
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from jobs.checkpoint.test_memory_jobs import losses as told_losses
from jobs.checkpoint.test_memory_jobs import starts
from support.notice_jobs import TRAINING, Train

pytestmark = [pytest.mark.torch, pytest.mark.safety]

MEMORY = json.dumps({"every_steps": 1})
STEPS = 30
HEAD, BODY = TRAINING.replace("% 10", "% 1").replace("1000000", str(STEPS)).split("torch.set_num_threads(1)\n")
STEP = "    if checkpointer.step(step):"
# `life` counts from 0. A step of the loop may be struck before it ends.
LIFE = (
    "life = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nprint(f'pid rank={rank} life={life} {os.getpid()}', flush=True)\n"
)
KILL = "    if (life, rank, step) in KILLS:\n        os.kill(os.getpid(), 9)\n"

WHO = "(os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK'])"
# Rank 2 is lost as soon as it has been called again, while rank 1 is on its way to the function.
DAWDLES = f"""\
if {WHO} == ('1', '1') and not os.path.exists('../first'):
    open('../first', 'w').close()
    time.sleep(3600)
"""
SECOND_LOSS = f"""\
if {WHO} == ('1', '2') and not os.path.exists('../second'):
    open('../second', 'w').close()
    os.kill(os.getpid(), 9)
"""
# The same when rank 1 is there, and waits with rank 0 for rank 2 to meet them.
LATER_LOSS = f"""\
if {WHO} == ('1', '2') and not os.path.exists('../second'):
    while not os.path.exists(os.environ['TRAINSHED_IN_PLACE'] + '/rank1.1'): time.sleep(0.02)
    time.sleep(2)
    open('../second', 'w').close()
    os.kill(os.getpid(), 9)
"""
LOST_AFTERWARDS = f"""\
if {WHO} == ('0', '1'):
    os.kill(os.getpid(), 9)
"""


def script(*kills: tuple[int, int, int], strike: str = KILL, before: str = "", inside: str = "", after: str = "") -> str:
    """The loop inside of a resumable function; (life, rank, step) of each kill."""
    body = BODY.replace("torch.manual_seed(7)\n", f"{LIFE}torch.manual_seed(7)\n").replace(STEP, f"{strike}{STEP}")
    return (
        f"import trainshed\n{HEAD}KILLS = {list(kills)}\n{before}@trainshed.resumable\ndef train():\n    global world\n"
        f"{textwrap.indent(inside + body, '    ')}train()\n{after}"
    )


def losses(output: str) -> dict[tuple[str, int], set[str]]:
    """All losses that ranks have printed for a step; the last one before a failure is in its reason, too."""
    return told_losses("\n".join(line for line in output.splitlines() if line.startswith("[")))


def pids(output: str) -> dict[int, list[str]]:
    """The processes that each rank was, in the order of its lives."""
    found: dict[int, list[str]] = {}
    for rank, pid in re.findall(r"pid rank=(\d) life=\d+ (\d+)", output):
        found.setdefault(int(rank), []).append(pid)
    return found


def resumed(folder: Path, code: str, **settings: Any) -> Train:
    """A job of three ranks that may be started again."""
    asked = {"warm_start": "auto", "max_restarts": 4, "checkpoint_memory": MEMORY, **settings}
    return Train(folder, code, ranks=3, **asked)


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
    with resumed(tmp_path, script(*kills)) as train:
        assert train.end() == 0, train.output
    assert losses(train.output) == straight
    for rank, lives in pids(train.output).items():
        for life, (before, after) in enumerate(itertools.pairwise(lives)):
            assert (before != after) == (kills[life][1] == rank), train.output
    for first, (_, _, step) in zip(starts(train.output)[1:], kills, strict=True):
        assert first in (step - 2, step - 1), train.output
    said = [one["reason"].rpartition("; ")[2] for one in train.record()["restarts"]]
    assert said == [f"rank {rank} replaced in place" for _, rank, _ in kills]
    assert "restart 3 of 4, resuming from step" in train.output


@pytest.mark.exact
def test_an_error_of_ones_own_is_a_failure_like_any_other(tmp_path: Path, straight: dict[tuple[str, int], set[str]]) -> None:
    strike = "    if (life, rank, step) in KILLS:\n        raise ValueError('bad batch')\n"
    with resumed(tmp_path, script((0, 2, 9), strike=strike)) as train:
        assert train.end() == 0, train.output
    assert losses(train.output) == straight
    assert [len(set(lives)) for _, lives in sorted(pids(train.output).items())] == [1, 1, 2], train.output
    (restart,) = train.record()["restarts"]
    assert "ValueError: bad batch" in restart["reason"]


@pytest.mark.exact
@pytest.mark.parametrize(
    ("before", "inside", "after", "said"),
    [
        (DAWDLES, SECOND_LOSS, "", "rank 1 is not replaced in place: rank 2 was lost meanwhile; all ranks start again"),
        ("", "", LOST_AFTERWARDS, "restart 1 of 4"),
        ("dist.init_process_group('gloo')\n", "", "", "the process group was made before the resumable function"),
    ],
)
def test_where_the_others_cannot_live_on_all_ranks_start_again(
    tmp_path: Path, straight: dict[tuple[str, int], set[str]], before: str, inside: str, after: str, said: str
) -> None:
    kills = [] if after else [(0, 1, 9)]
    code = script(*kills, before=before, inside=inside, after=after)
    if "init" in before:
        code = code.replace("        dist.init_process_group", "        0 and dist.init_process_group")
    with resumed(tmp_path, code) as train:
        assert train.end() == 0, train.output
    assert said in train.output
    assert losses(train.output) == straight
    restarts = train.record()["restarts"]
    assert restarts
    assert "in place" not in restarts[-1]["reason"]
    last = [lives[-1] for lives in pids(train.output).values()]
    assert not set(last) & {pid for lives in pids(train.output).values() for pid in lives[:-1]}, train.output


@pytest.mark.exact
def test_ranks_that_wait_for_a_rank_to_meet_them_live_on_when_it_is_lost(
    tmp_path: Path, straight: dict[tuple[str, int], set[str]]
) -> None:
    with resumed(tmp_path, script((0, 1, 9), inside=LATER_LOSS)) as train:
        assert train.end() == 0, train.output
    assert losses(train.output) == straight


def test_a_stop_while_a_rank_is_replaced_ends_all_of_them_at_once(tmp_path: Path) -> None:
    """The others wait for the lost one, whose place is taken by a process that is in no hurry."""
    waits = (
        "if (os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK']) == ('1', '1'):\n    print('waits', flush=True)\n"
    )
    with resumed(tmp_path, script((0, 1, 9), inside=f"{waits}    time.sleep(3600)\n")) as train:
        train.until("waits", "restart 1 of 4")
        train.signal(signal.SIGTERM)
        assert train.end() != 0
    assert "did not end in time" not in train.output


def test_a_budget_that_is_used_up_ends_the_job(tmp_path: Path) -> None:
    with resumed(tmp_path, script((0, 1, 9), (1, 0, 15)), warm_start="off", max_restarts=1) as train:
        assert train.end() != 0
    assert "rank 1 replaced in place" in train.output
    assert "not restarted: all 1 restarts are used up" in train.output
    assert [len(lives) for lives in pids(train.output).values()] == [2, 2, 2]
