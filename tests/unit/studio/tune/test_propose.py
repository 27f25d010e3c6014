"""Which values the next trial gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.extras import needs
from trainshed.runner.job.job import Job
from trainshed.studio.batches.folder import COMPLETED, FAILED
from trainshed.studio.tune.propose import STARTUP, propose
from trainshed.studio.tune.space import CATEGORICAL, CONTINUOUS, INTEGER, LOG, REVERSE_LOG, Parameter, fits, grid
from trainshed.studio.tune.trial import Trial
from trainshed.studio.tune.tuning import (
    BAYESIAN,
    GRID,
    MAXIMIZE,
    RANDOM,
    TRANSFER,
    Objective,
    Strategy,
    TuningJob,
    WarmStart,
)
from trainshed.studio.tune.warm import EarlierTrial

needs("optuna")
SPACE = (
    Parameter("kind", CATEGORICAL, categories=(("a", True), ("b", True))),
    Parameter("beta", CONTINUOUS, 0.5, 0.999, REVERSE_LOG, when=(("kind", ("b",)),)),
    Parameter("rate", CONTINUOUS, 1e-5, 1e-1, LOG),
    Parameter("layers", INTEGER, 1, 64, LOG),
    Parameter("drop", CONTINUOUS, 0.0, 0.5, step="0.05"),
)
SMALL = (Parameter("kind", CATEGORICAL, categories=(("a", True), ("b", True))), Parameter("n", INTEGER, 1, 3, step="1"))


def tuning(kind: str, space: tuple[Parameter, ...] = SPACE, seed: int = 0) -> TuningJob:
    return TuningJob("t", Job("t"), space, Objective("loss"), Strategy(kind, seed=seed))


def told(values: dict[str, str]) -> float:
    """An objective: small for small rates, and a little for many layers."""
    return float(values["rate"]) * 10 - int(values["layers"]) / 1000


def played(job: TuningJob, count: int, known: tuple[EarlierTrial, ...] = ()) -> list[Trial]:
    trials: list[Trial] = []
    for number in range(1, count + 1):
        values = propose(job, trials, number, known)
        if values is None:
            break
        value = told(values) if "rate" in values else 1.0
        trials.append(Trial(number, values, COMPLETED, ended=float(number), value=value))
    return trials


@pytest.mark.parametrize("kind", [RANDOM, BAYESIAN])
def test_all_that_is_proposed_is_in_the_space(kind: str) -> None:
    for trial in played(tuning(kind), STARTUP + 6):
        assert fits(SPACE, trial.values), trial.values


def test_a_model_of_several_objectives_looks_where_neither_is_bad() -> None:
    space = (Parameter("x", CONTINUOUS, -10.0, 10.0),)
    job = replace(tuning(BAYESIAN, space), further=(Objective("gain", MAXIMIZE),))
    trials: list[Trial] = []
    for number in range(1, STARTUP + 21):
        values = propose(job, trials, number)
        assert values is not None
        x = float(values["x"])  # the front is between 0 and 2
        trials.append(Trial(number, values, COMPLETED, value=x**2, further=(-((x - 2) ** 2),)))

    drawn, asked = trials[:STARTUP], trials[STARTUP:]
    far = [
        sum(min(abs(x), abs(x - 2)) for t in part if not 0 <= (x := float(t.values["x"])) <= 2) / len(part)
        for part in (drawn, asked)
    ]
    assert far[1] < far[0] / 2
    assert propose(job, trials[:-1], len(trials)) == trials[-1].values


@pytest.mark.exact
@pytest.mark.parametrize("kind", [RANDOM, BAYESIAN])
def test_a_tuner_that_was_killed_proposes_what_it_would_have(kind: str) -> None:
    job, trials = tuning(kind), played(tuning(kind), STARTUP + 3)

    again = [propose(job, trials[:number], number + 1) for number in range(STARTUP, STARTUP + 3)]

    assert again == [trial.values for trial in trials[STARTUP:]]
    assert propose(tuning(kind, seed=1), trials, 99) != propose(job, trials, 99)


def test_the_grid_is_tried_in_order_and_then_it_is_over() -> None:
    trials = played(tuning(GRID, SMALL), 99)

    assert [trial.values for trial in trials] == list(grid(SMALL))


@pytest.mark.parametrize("kind", [RANDOM, BAYESIAN])
def test_no_combination_is_tried_twice_and_all_are_in_the_end(kind: str) -> None:
    space = (*SMALL, Parameter("m", INTEGER, 1, 3, step="1"))
    tried = [tuple(trial.values.items()) for trial in played(tuning(kind, space), 99)]

    assert len(tried) == 18 == len(set(tried))


def test_the_model_looks_where_it_is_good() -> None:
    guided, blind = (played(tuning(kind), 26) for kind in (BAYESIAN, RANDOM))
    rates = [sorted(float(trial.values["rate"]) for trial in trials[STARTUP:]) for trials in (guided, blind)]

    assert rates[0][8] * 3 < rates[1][8], "the median of what is tried"


def test_what_is_to_be_large_is_looked_for_at_the_other_end() -> None:
    job = replace(tuning(BAYESIAN), objective=Objective("loss", MAXIMIZE))
    rates = sorted(float(trial.values["rate"]) for trial in played(job, 24)[STARTUP:])

    assert rates[7] > 1e-2


def test_trials_that_run_or_failed_are_no_hindrance() -> None:
    trials = played(tuning(BAYESIAN), STARTUP + 2)
    odd = [Trial(98, trials[0].values | {"layers": "7"}), Trial(99, trials[1].values | {"layers": "9"}, FAILED)]

    values = propose(tuning(BAYESIAN), [*trials, *odd], 100)

    assert values is not None and fits(SPACE, values)


def test_a_warm_start_from_identical_data_needs_no_start_at_random() -> None:
    known = tuple(EarlierTrial(trial.values, told(trial.values)) for trial in played(tuning(RANDOM), 30))
    first = [propose(tuning(BAYESIAN, seed=seed), [], 1, known) for seed in range(8)]
    rates = sorted(float(values["rate"]) for values in first if values)

    assert rates[4] < 1e-3, "a median of 1e-3 is what chance gives"


def test_a_warm_start_from_elsewhere_tries_the_best_of_each_parent_first() -> None:
    job = replace(tuning(RANDOM), warm=WarmStart(("/one", "/two"), TRANSFER))
    known = tuple(EarlierTrial({"kind": "a", "rate": rate, "layers": "1", "drop": "0.0"}, 0.0) for rate in ("0.01", "0.02"))

    assert [trial.values for trial in played(job, 2, known)] == [one.values for one in known]
    assert played(job, 3, known)[2].values not in [one.values for one in known]
