"""What is kept of trials, and what follows from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED
from trainshed.studio.tune.trial import Trial, best_of, elapsed, front_of, since_best, trial_of
from trainshed.studio.tune.tuning import MAXIMIZE, Objective

LOSS, SCORE = Objective("loss"), Objective("score", MAXIMIZE)
TRIAL = Trial(3, {"lr": "0.1"}, COMPLETED, 10.0, 12.5, 1, 0.25, "", "", False, 1, 2.0)


def over(number: int, value: float | None, state: str = COMPLETED) -> Trial:
    return Trial(number, {}, state, ended=float(number), value=value)


def test_a_trial_comes_back_as_it_was() -> None:
    assert trial_of(TRIAL.plain(), 3) == TRIAL


@pytest.mark.parametrize(
    "change",
    [
        {"number": 4}, {"number": "3"}, {"values": {"lr": 0.1}}, {"values": []}, {"state": "Done"}, {"created": -1},
        {"created": float("nan")}, {"ended": 1e300}, {"value": float("nan")}, {"value": float("inf")}, {"value": True},
        {"slot": -1}, {"slot": 1.5}, {"paused": 1}, {"retries": None}, {"more": 1}, {"further": 1},
        {"further": [True]}, {"further": [float("nan")]}, {"further": ["1"]},
    ],
)  # fmt: skip
def test_what_somebody_else_wrote_is_no_trial(change: dict[str, Any]) -> None:
    assert trial_of({**TRIAL.plain(), **change}, 3) is None


@pytest.mark.parametrize("data", [None, [], "x", {}, {"number": 3}])
def test_other_things_are_no_trial(data: Any) -> None:
    assert trial_of(data, 3) is None


def test_the_best_is_the_first_of_equals_and_never_one_that_failed_or_runs() -> None:
    trials = [over(1, 0.3), over(2, 0.2, STOPPED), over(3, 0.2), over(4, None, FAILED), Trial(5, {}, value=0.1)]

    assert best_of(trials, (LOSS,)) == trials[1] and best_of(trials, (SCORE,)) == trials[0]
    assert best_of(trials[3:], (LOSS,)) is None


def test_trials_without_a_new_best_are_counted_in_the_order_of_their_ends() -> None:
    trials = [over(1, 0.3), over(2, 0.4), over(3, 0.2), over(4, 0.2), over(5, None, FAILED), over(6, 0.9)]

    assert since_best(trials, (LOSS,)) == 2, "an equal is not better, and a failure says nothing"
    assert since_best(trials, (SCORE,)) == 0
    assert since_best([], (LOSS,)) == 0


def scored(number: int, *values: float, state: str = COMPLETED) -> Trial:
    return Trial(number, {}, state, ended=float(number), value=values[0], further=values[1:])


def test_the_front_holds_what_no_other_trial_beats_in_all_objectives() -> None:
    trials = [scored(1, 0.3, 0.9), scored(2, 0.2, 0.8), scored(3, 0.4, 0.7), scored(4, 0.2, 0.8), scored(5, 0.1, 0.1)]
    trials += [over(6, 0.0), Trial(7, {}, value=0.0, further=(1.0,)), scored(8, 0.25, 0.85)]

    assert [trial.number for trial in front_of(trials, (LOSS, SCORE))] == [1, 2, 4, 5, 8]
    assert [trial.number for trial in front_of(trials[:4], (LOSS,))] == [], "one value each is asked for"
    assert front_of([], (LOSS, SCORE)) == []


def test_of_several_objectives_the_first_names_the_best_and_the_next_decides_among_equals() -> None:
    trials = [scored(1, 0.2, 0.1), scored(2, 0.2, 0.8), scored(3, 0.2, 0.8), scored(4, 0.3, 0.9)]

    assert best_of(trials, (LOSS, SCORE)) == trials[1] and best_of(trials, (SCORE, LOSS)) is not None
    assert since_best(trials, (LOSS, SCORE)) == 0
    assert since_best([*trials, scored(5, 0.3, 0.9), scored(6, 0.4, 0.1)], (LOSS, SCORE)) == 2


def test_a_trial_with_several_objectives_comes_back_and_one_of_an_older_version_too() -> None:
    trial = scored(3, 0.25, 4.0)
    old = {name: value for name, value in TRIAL.plain().items() if name != "further"}

    assert trial_of(json.loads(json.dumps(trial.plain())), 3) == trial
    assert trial_of(old, 3) == TRIAL


def test_time_counts_where_trials_run_and_once_where_several_do() -> None:
    spans = [(0, 10), (5, 12), (20, 25), (21, 22)]
    trials = [Trial(number, {}, COMPLETED, float(a), float(b)) for number, (a, b) in enumerate(spans, 1)]

    assert elapsed(trials, 100.0) == 17
    assert elapsed([*trials, Trial(9, {}, created=99.0)], 100.0) == 18
