"""What counts as movement between two looks, and what does not."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from trainshed.container.hangs import movement
from trainshed.container.hangs.activity import COLLECTIVE, WORK, Activity
from trainshed.container.hangs.hang_watch import HangWatch
from trainshed.container.hangs.movement import RankUsage
from trainshed.container.hangs.sample import Sample, anything_moved
from trainshed.container.hangs.stragglers import Where
from trainshed.container.roster.roster import Alone

BEFORE = RankUsage(at=0.0, pids=(1, 2), own_cpu=5.0, other_cpu=5.0, bytes=1000, spins=False)
LIMIT = 60.0  # seconds; a process that hangs must not hang the tests
LONG = 200.0  # seconds between two looks


def sample(kind: str, place: str = "a stack", **changes: Any) -> Sample:
    return Sample(Where(0, "algo-1", Activity(kind)), "", place, BEFORE.replace(**changes))


@pytest.mark.parametrize(
    ("kind", "spins", "change", "moves"),
    [
        (WORK, False, {}, False),
        (WORK, False, {"own_cpu": 6.5}, False),  # what idle threads use
        (WORK, False, {"own_cpu": 8.0}, True),  # one long call into native code
        (WORK, True, {"own_cpu": 205.0}, False),  # waits for a GPU, which spins
        (COLLECTIVE, False, {"own_cpu": 205.0}, False),  # waits for other ranks, which may spin
        (COLLECTIVE, False, {"other_cpu": 8.0}, True),  # its data-loader workers are busy
        (COLLECTIVE, True, {"bytes": 1 << 22}, True),  # a thread of its own saves a checkpoint
        (WORK, True, {"bytes": 1 << 19}, False),
        (COLLECTIVE, False, {"pids": (1, 3)}, True),  # it has started another process
        (WORK, False, {"own_ready": True}, True),  # it computes, and others have the CPUs
        (WORK, True, {"own_ready": True}, False),  # it spins
        (COLLECTIVE, False, {"own_ready": True}, False),
        (COLLECTIVE, False, {"other_ready": True}, True),  # its workers get no CPU
    ],
)
def test_cpu_time_counts_where_it_means_work(kind: str, spins: bool, change: dict[str, Any], moves: bool) -> None:
    before = [sample(kind, spins=spins)]

    assert anything_moved(before, [sample(kind, spins=spins, **{"at": LONG, **change})]) is moves


def test_another_stack_is_movement_whatever_the_rest_says() -> None:
    assert anything_moved([sample(COLLECTIVE, "line 1")], [sample(COLLECTIVE, "line 2", at=LONG)])


def test_the_cpu_time_of_a_program_without_stacks_counts_even_where_it_may_spin() -> None:
    after = sample(WORK, "", spins=True, own_cpu=205.0, at=LONG)

    assert anything_moved([sample(WORK, "", spins=True)], [after])


def test_a_rank_that_has_ended_since_is_movement_and_one_that_had_ended_before_is_not() -> None:
    ended = Sample(Where(0, "algo-1", Activity("ended")), "", "")

    assert anything_moved([sample(WORK)], [ended])
    assert not anything_moved([ended], [ended])


class Silent:
    """A run that has printed nothing for long."""

    def silent(self) -> float:
        return 1000.0


def test_a_machine_that_slept_has_to_be_seen_standing_still_for_some_time() -> None:
    watch = HangWatch("algo-1", "", "", lambda _: None, Alone("algo-1"), seconds=8.0, stop=True)
    watch._run = Silent()  # type: ignore[assignment]
    found = []
    for at in range(1000, 1007):
        watch._take_look([sample(COLLECTIVE, at=float(at))], float(at))
        found.append(watch.still)

    assert found == [False, False, False, True, True, True, True]


def test_what_moves_while_it_is_looked_at_stands_still_no_more() -> None:
    watch = HangWatch("algo-1", "", "", lambda _: None, Alone("algo-1"), seconds=8.0, stop=True)
    watch._run = Silent()  # type: ignore[assignment]
    for at in range(1000, 1005):
        watch._take_look([sample(COLLECTIVE, at=float(at))], float(at))
    assert watch.still
    watch._take_look([sample(COLLECTIVE, "elsewhere", at=1005.0)], 1005.0)

    assert not watch.still


def test_a_process_is_read_with_its_children_and_what_they_read() -> None:
    # Both use many of the 10 ms that the kernel counts in.
    burn = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    code = f"{burn}{child}; print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        (rank,) = movement.ranks_below(process.pid, 3)
        reading = movement.read(rank, 1.0)
        end = time.monotonic() + LIMIT
        while not movement.describe(process.pid).startswith("waiting"):  # it has printed, and is about to read
            assert time.monotonic() < end
            time.sleep(0.01)
        process.stdin.close()

    assert (rank.rank, rank.pids) == (3, (process.pid,))
    assert reading.own_cpu > 0.1 and reading.other_cpu > 0.1 and reading.bytes > 0 and not reading.spins


def test_a_launchers_children_are_the_ranks_that_their_variable_says() -> None:
    child = "import os, sys; os.write(1, b'ready\\n'); sys.stdin.read()"
    code = (
        "import os, subprocess, sys\n"
        f"run = lambda n: subprocess.Popen([sys.executable, '-c', {child!r}], env=dict(os.environ, RANK=str(n)))\n"
        "[process.wait() for process in [run(4), run(5)]]\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdin is not None and launcher.stdout is not None
        assert [launcher.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        ranks = movement.ranks_below(launcher.pid, None)
        launcher.stdin.close()

    assert sorted(rank.rank for rank in ranks if rank.rank is not None) == [4, 5]
    assert launcher.pid not in {pid for rank in ranks for pid in rank.pids}


def test_a_process_that_has_ended_has_used_nothing_and_is_called_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    reading = movement.read(movement.RankProcesses(0, process.pid, (process.pid,)), 1.0)

    assert (reading.own_cpu, reading.other_cpu, reading.bytes) == (0.0, 0.0, 0)
    assert movement.describe(process.pid) == "ended"


def test_a_process_that_computes_is_ready_and_one_that_sleeps_is_not() -> None:
    """However little of a CPU it gets."""
    for code, ready in (("while True: pass", True), ("import time; time.sleep(60)", False)):
        process = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{code}"], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            deadline = time.monotonic() + LIMIT
            while movement.read(movement.RankProcesses(0, process.pid, (process.pid,)), 0.0).own_ready is not ready:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()
            process.communicate()
