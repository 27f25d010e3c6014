"""The closed formula of goodput, against a simulation of discrete events and against limits that are known."""

from __future__ import annotations

import json
import math

import pytest

from trainshed.cli import main
from trainshed.studio.forecast import Case, best_interval, expected, measures
from trainshed.studio.simulation import Fleet, simulated


def played(case: Case, interruptions: int) -> tuple[float, ...]:
    """Parts of the wall clock: steps that counted, done again, stalled, starting again."""
    found = simulated(Fleet(case), interruptions * case.between)
    return found.goodput, found.again, found.stalled, found.restarting


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

    assert (found.goodput, found.again, found.stalled, found.restarting) == pytest.approx(played(case, 40_000), abs=0.01)
    assert sum((found.goodput, found.again, found.stalled, found.restarting)) == pytest.approx(1.0)


def test_copies_in_memory_lose_what_came_after_the_last_copy_alone() -> None:
    case = Case(1_800.0, 20.0, 60.0, interval=300.0, memory=10.0, memory_stall=0.5)
    found = expected(case)
    stall = 0.5 + 20.0 * 10 / 300  # a checkpoint each thirtieth time
    same = case.replace(memory=0.0, interval=10.0, stall=stall)

    for one in (case, same):
        assert (found.goodput, found.again, found.stalled, found.restarting) == pytest.approx(played(one, 20_000), abs=0.01)


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
    first, *others = [expected(one).goodput for _, one in measures(plain)]

    assert all(one > first for one in others) and others[-1] == max(others)


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


def test_jobs_are_played_where_somebody_asks_how_far_they_lie_apart(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["goodput", "--mtbf", "8h", "--every", "2h", "--simulate"]
    assert main([*words, "1d", "--json"]) == main([*words, "30d", "--json"]) == 0
    short, long = [json.loads(line)["measures"][0] for line in capsys.readouterr().out.splitlines()]

    for one in (short, long):
        assert one["simulated"][0] < one["goodput"] < one["simulated"][1]
    assert long["simulated"][1] - long["simulated"][0] < short["simulated"][1] - short["simulated"][0]
    assert main([*words, "1d"]) == 0
    assert "9 OF 10 IN 24 h 00 min" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        [], ["--mtbf", "8h", "--host-mtbf", "1d"], ["--mtbf", "0"], ["--mtbf", "soon"], ["--mtbf", "8h", "--hosts", "none"],
        ["--mtbf", "8h", "--price", "nan"], ["--mtbf", "8h", "--stall", "-1"], ["--mtbf", "8h", "--simulate", "soon"],
        ["--mtbf", "1s", "--simulate", "30d"],
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
