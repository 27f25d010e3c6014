"""The verdict on steps of every kind: which cause, with which numbers, and what to try."""

from __future__ import annotations

from typing import Any

import pytest

from trainshed.observe.bottleneck import Verdict, verdict_of
from trainshed.observe.steps import PHASES, RankSteps, Window


def rank(
    number: int = 0, steps: int = 20, samples: int | None = 64, time: float = 0.0, facts: Any = None, **phases: float
) -> RankSteps:
    """A rank whose every step has these milliseconds of each phase."""
    seconds = {name: phases.get(name, 0.0) * steps / 1000 for name in PHASES}
    window = Window(
        time=time,
        step=steps,
        steps=steps,
        seconds=sum(seconds.values()),
        longest=1.0,
        phases=seconds,
        samples=None if samples is None else samples * steps,
    )
    known = {"Rank": number, "Host": "algo-1", "Cpus": 8, "Ranks": 1, "Device": "cpu", "Workers": 0}
    return RankSteps(number, {**known, **(facts or {})}, (window,))


def busy(per_cent: float) -> Any:
    return {("algo-1", "cpu", "cpus", "CPUUtilization"): [(1.0, per_cent), (2.0, per_cent)]}


def judged(*ranks: RankSteps, system: Any = None) -> Verdict:
    verdict = verdict_of(ranks, system or {})
    assert verdict is not None
    return verdict


def test_a_loader_without_workers_beside_idle_cpus() -> None:
    verdict = judged(rank(data=61, forward=10, backward=20, optimizer=9), system=busy(12.5))

    assert verdict.cause == "input" and verdict.share == pytest.approx(0.61)
    assert verdict.sentence() == (
        "input-bound: 61 % of a step waits for data; num_workers=0, and 7.0 of 8 CPUs are idle; "
        "try num_workers=7 in the DataLoader"
    )
    assert verdict.samples_a_second == pytest.approx(640) and verdict.step_seconds == pytest.approx(0.1)


def test_workers_that_use_all_cpus_are_not_to_be_more() -> None:
    verdict = judged(rank(data=61, forward=39, facts={"Workers": 8}), system=busy(99.0))

    assert verdict.cause == "input" and "the CPUs are the limit" in verdict.advice


def test_without_samples_of_the_machine_the_loader_is_still_named() -> None:
    verdict = judged(rank(data=61, forward=39, samples=None, facts={"Workers": 2}))

    assert "num_workers=2" in verdict.finding and verdict.samples_a_second is None


@pytest.mark.parametrize(
    ("phases", "cause", "words"),
    [
        ({"copy": 30, "forward": 70}, "copy", "pin_memory=True"),
        ({"checkpoint": 40, "forward": 60}, "checkpoint", "save less often"),
        ({"rest": 50, "forward": 50}, "loop", "evaluation, logging"),
        ({"optimizer": 50, "forward": 50}, "optimizer", "fused=True"),
        ({"forward": 40, "backward": 60}, "compute", "names the operators"),
        ({"data": 26, "checkpoint": 30, "forward": 44}, "checkpoint", "save less often"),
        ({"data": 20, "forward": 80}, "compute", "80 % of a step is forward and backward"),
    ],
)
def test_each_cause_has_its_share_and_its_advice(phases: Any, cause: str, words: str) -> None:
    verdict = judged(rank(**phases))

    assert verdict.cause == cause and words in verdict.sentence()
    assert verdict.slowest is None


def test_a_short_step_with_few_samples_is_overhead_and_a_long_one_is_a_large_model() -> None:
    assert judged(rank(samples=1, forward=1, backward=1, optimizer=1)).cause == "overhead"
    assert judged(rank(samples=1, forward=300, backward=600, optimizer=100)).cause == "compute"
    assert judged(rank(samples=64, forward=1, backward=1)).cause == "compute"


def test_a_busy_machine_does_not_make_a_tiny_batch_large() -> None:
    slow = rank(samples=1, forward=30, backward=30, optimizer=30)
    quick = slow.replace(windows=tuple(window.replace(cpu=0.002 * window.steps) for window in slow.windows))

    assert (judged(slow).cause, judged(quick).cause) == ("compute", "overhead")


def test_one_rank_that_holds_up_the_others_is_named_with_what_it_does() -> None:
    others = [rank(number, forward=30, communication=70) for number in (0, 1, 3)]
    verdict = judged(*others, rank(2, data=70, forward=30))

    assert (verdict.cause, verdict.slowest) == ("straggler", 2)
    assert verdict.finding.startswith("rank 2 needs 100 ms for a step, the others 30 ms and then wait for it")
    assert "its wait for data" in verdict.finding
    assert verdict.phases["data"] == pytest.approx(0.07)


def test_ranks_that_do_not_wait_for_each_other_hold_up_nobody() -> None:
    verdict = judged(rank(0, forward=30), rank(1, forward=100))

    assert (verdict.cause, verdict.slowest) == ("compute", None)


def test_waiting_on_all_ranks_is_the_network() -> None:
    system = {("algo-1", "network", "eth0", "TransmitBytesPerSecond"): [(1.0, 2.5e6)]}
    verdict = judged(*(rank(number, forward=40, communication=60) for number in range(4)), system=system)

    assert verdict.cause == "communication" and verdict.share == pytest.approx(0.6)
    assert "on every rank; eth0 sends 2.5 MB/s" in verdict.finding


def test_all_ranks_that_wait_for_data_are_input_bound() -> None:
    assert judged(*(rank(number, data=60, forward=35, communication=5) for number in range(2))).cause == "input"


def test_ranks_that_had_ended_before_the_others_began_do_not_count() -> None:
    """A job that went on with fewer ranks; those that merely end earlier do count."""
    stale = rank(3, time=50.0, data=99, forward=1)
    verdict = judged(rank(0, time=100.0, forward=40), rank(1, time=100.9, forward=50), stale)

    assert (verdict.cause, verdict.phases["forward"]) == ("compute", pytest.approx(0.05))


@pytest.mark.parametrize("nonsense", ["x", -1, 1e308, None, [], True])
def test_facts_that_make_no_sense_are_unknown(nonsense: Any) -> None:
    facts = dict.fromkeys(("Workers", "Cpus", "Ranks", "Host", "Device", "Pipeline"), nonsense)

    assert judged(rank(data=61, forward=39, facts=facts), system=busy(50.0)).cause == "input"


def test_a_few_steps_have_no_verdict_and_the_last_life_of_a_rank_counts() -> None:
    assert verdict_of([rank(steps=9, forward=1)], {}) is None
    assert verdict_of([], {}) is None
    assert judged(rank(time=1.0, data=90, forward=10), rank(time=2.0, forward=100)).cause == "compute"
