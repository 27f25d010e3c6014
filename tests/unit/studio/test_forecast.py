"""The closed formula of goodput, against a simulation of discrete events and against limits that are known."""

from __future__ import annotations

import json
import math
import random

import pytest

from trainshed.cli import main
from trainshed.studio.forecast import Case, best_interval, expected, measures


def simulated(case: Case, interval: float, intervals: int, seed: int = 1) -> tuple[float, float, float, float]:
    """Parts of the wall clock: steps that counted, done again, stalled, starting again."""
    chance = random.Random(seed)
    now = again = restarting = 0.0
    due = chance.expovariate(1 / case.between)
    for _ in range(intervals):
        while True:
            whole = now + interval + case.stall
            if whole <= due:
                now = whole
                break
            again += due - now
            now = due
            while True:  # starting again may be interrupted, too
                due = now + chance.expovariate(1 / case.between)
                ready = min(due, now + case.restart)
                restarting += ready - now
                now = ready
                if ready < due:
                    break
    return intervals * interval / now, again / now, intervals * case.stall / now, restarting / now


@pytest.mark.parametrize(
    "case",
    [
        Case(28_800.0, 5.0, 120.0),
        Case(3_600.0, 30.0, 600.0, interval=1_800.0),
        Case(600.0, 10.0, 300.0, interval=60.0),
        Case(10_800.0, 1.0, 5.0, interval=7_200.0),
    ],
)
def test_the_formula_is_what_a_simulation_comes_to(case: Case) -> None:
    found = expected(case)
    played = simulated(case, found.interval, 40_000)

    assert (found.goodput, found.again, found.stalled, found.restarting) == pytest.approx(played, abs=0.01)
    assert sum((found.goodput, found.again, found.stalled, found.restarting)) == pytest.approx(1.0)


def test_copies_in_memory_lose_what_came_after_the_last_copy_alone() -> None:
    case = Case(1_800.0, 20.0, 60.0, interval=300.0, memory=10.0, memory_stall=0.5)
    found = expected(case)
    stall = 0.5 + 20.0 * 10 / 300  # a checkpoint each thirtieth time
    played = simulated(case.replace(stall=stall), 10.0, 200_000)

    assert (found.goodput, found.again, found.stalled, found.restarting) == pytest.approx(played, abs=0.01)


@pytest.mark.parametrize(("between", "stall"), [(28_800.0, 5.0), (3_600.0, 0.1), (600.0, 60.0)])
def test_the_best_interval_is_youngs_where_interruptions_are_rare_and_the_best_everywhere(
    between: float, stall: float
) -> None:
    case = Case(between, stall, 60.0)
    best = best_interval(case)

    goodput = expected(case).goodput
    assert all(goodput >= expected(case.replace(interval=best * part)).goodput for part in (0.5, 0.9, 1.1, 2.0))
    if stall < between / 1000:
        assert best == pytest.approx(math.sqrt(2 * stall * between) - stall, rel=0.02)


def test_a_job_that_never_comes_to_a_checkpoint_has_no_goodput() -> None:
    assert expected(Case(1.0, 1.0, 1e6)).goodput == expected(Case(1.0, 1.0, 1.0, interval=1e6)).goodput == 0.0


def test_no_measure_lowers_goodput() -> None:
    plain = Case(10_800.0, 20.0, 300.0, interval=1_800.0)
    (_, first), *others = measures(plain)

    assert all(one.goodput > first.goodput for _, one in others)
    assert others[-1][1].goodput == max(one.goodput for _, one in others)


def test_the_command_tells_the_case_and_each_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", "--hosts", "1000", "--host-mtbf", "8000h", "--price", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first = told["measures"][0]

    assert (told["hosts"], told["between"], told["interval"]) == (1000, 28_800.0, 0.0)
    assert first["measure"] == "as it is" and first["goodput"] == pytest.approx(0.9774, abs=0.0001)
    assert first["lost"] == pytest.approx(2 * first["lost_host_hours"], abs=0.01)
    assert main(["goodput", "--mtbf", "8h", "--every", "30m"]) == 0
    printed = capsys.readouterr().out
    assert (
        printed.startswith("1 host, interrupted every 8 h 00 min on average; a checkpoint stalls 5 s")
        and "the best" in printed
    )


@pytest.mark.parametrize(
    "words",
    [
        [], ["--mtbf", "8h", "--host-mtbf", "1d"], ["--mtbf", "0"], ["--mtbf", "soon"], ["--mtbf", "8h", "--hosts", "none"],
        ["--mtbf", "8h", "--price", "nan"], ["--mtbf", "8h", "--stall", "-1"],
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
