"""Which values the next trial gets: a function of what is known, and of nothing else.

So a tuner that was killed proposes what it would have proposed. Optuna's samplers are asked anew each time, with all trials
known; that costs milliseconds, and a trial takes longer.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trainshed.base.errors import TrainshedError

from .population import member
from .space import CATEGORICAL, INTEGER, LOG, REVERSE_LOG, Parameter, combinations, grid, spelled
from .trial import Trial, losses
from .tuning import AUTO, BAYESIAN, GP, GRID, POPULATION, TPE, TRANSFER, TuningJob

if TYPE_CHECKING:
    from .warm import EarlierTrial

STARTUP = 10  # trials with an objective before a model of them is asked
_REDRAWS = 64  # attempts to find values that no trial has had
_ASKS = 4
# Where a Gaussian process is the better model (benchmarks/tune.py --only samplers), and not slow.
_GP_TRIALS = 200
_GP_CATEGORIES = 5
_GP_NEEDS = ("torch", "scipy")


def propose(
    tuning: TuningJob, trials: Iterable[Trial], number: int, known: tuple[EarlierTrial, ...] = ()
) -> dict[str, str] | None:
    """The values of trial `number`; None where every combination has been tried.

    Args:
        trials: all that there are so far.
        known: what earlier tuning jobs have found.
    """
    trials = list(trials)
    if tuning.strategy.kind == GRID:
        return next((values for index, values in enumerate(grid(tuning.space), 1) if index == number), None)
    if tuning.strategy.kind == POPULATION:
        found = member(tuning, trials, number)
        return None if found is None else found.values
    seen = {key(trial.values) for trial in trials}
    if tuning.warm.kind == TRANSFER:  # values from elsewhere say nothing here; their best places are worth a look
        for one in known:
            if key(one.values) not in seen:
                return dict(one.values)
        known = ()
    if tuning.strategy.kind == BAYESIAN:
        told = [(trial.values, losses(trial, tuning.objectives)) for trial in trials]
        measured = [(values, found) for values, found in told if found is not None]
        measured += [(one.values, (tuning.objective.loss(one.value),)) for one in known]
        if len(measured) >= STARTUP:
            running = [trial.values for trial in trials if not trial.over]
            for attempt in range(_ASKS):
                values = _modelled(tuning, measured, running, f"{tuning.strategy.seed}/{number}/{attempt}")
                if key(values) not in seen:
                    return values
    return _drawn(tuning, seen, number)


def preview(tuning: TuningJob, most: int = 10) -> str:
    """The first trials' values, for a person; the model of a Bayesian search has none to learn from yet."""
    trials: list[Trial] = []
    of_first = tuning.strategy.size or most  # later generations rest on what these find
    for number in range(1, min(tuning.limits.max_jobs or most, most, of_first) + 1):
        values = propose(tuning, trials, number)
        if values is None:
            break
        trials.append(Trial(number, values))
    lines = [f"{trial.number:4}  " + "  ".join(f"{name}={text}" for name, text in trial.values.items()) for trial in trials]
    count = combinations(tuning.space)
    of_all = f" of {count} combinations" if count is not None else ""
    return f"{tuning.name}: {tuning.strategy.kind}, the first {len(trials)} trials{of_all}\n" + "\n".join(lines) + "\n"


def key(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Values as something to be compared."""
    return tuple(sorted(values.items()))


def _drawn(tuning: TuningJob, seen: set[tuple[tuple[str, str], ...]], number: int) -> dict[str, str] | None:
    """At random, and none a second time."""
    for attempt in range(_REDRAWS):
        draw = random.Random(f"{tuning.strategy.seed}/{number}/{attempt}")
        values: dict[str, str] = {}
        for parameter in tuning.space:
            part = draw.random()  # drawn where it is not needed, too: the others then do not depend on that
            if parameter.active(values):
                values[parameter.name] = parameter.at(part)
        if key(values) not in seen:
            return values
    if combinations(tuning.space) is None:
        return values
    return next((left for left in grid(tuning.space) if key(left) not in seen), None)


def require_optuna(tuning: TuningJob) -> None:
    """Raises TrainshedError where the strategy needs packages that are not there."""
    if tuning.strategy.kind != BAYESIAN:
        return
    needed = ("optuna", *_GP_NEEDS) if tuning.strategy.sampler == GP else ("optuna",)
    if missing := [name for name in needed if find_spec(name) is None]:
        raise TrainshedError(
            f"strategy bayesian needs {' and '.join(missing)}",
            hint="pip install 'trainshed[tune]'"
            + (" torch scipy" if tuning.strategy.sampler == GP else "")
            + ", or choose random, grid or hyperband",
        )


def sampler_of(tuning: TuningJob, trials: int) -> str:
    """The model that `auto` stands for after so many trials; the same wherever the same packages are installed."""
    if tuning.strategy.sampler != AUTO:
        return tuning.strategy.sampler
    fits = all(not parameter.when and len(parameter.categories) <= _GP_CATEGORIES for parameter in tuning.space)
    return GP if fits and trials < _GP_TRIALS and all(map(find_spec, _GP_NEEDS)) else TPE


def _modelled(
    tuning: TuningJob, measured: list[tuple[dict[str, str], tuple[float, ...]]], running: list[dict[str, str]], seed: str
) -> dict[str, str]:
    """As Optuna's sampler proposes, told of all trials: those that run, too, so that it looks elsewhere."""
    import warnings

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    number = random.Random(seed).randrange(2**31)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some options are called experimental
        sampler: Any
        if sampler_of(tuning, len(measured)) == GP:
            sampler = optuna.samplers.GPSampler(seed=number, n_startup_trials=0)
        else:
            sampler = optuna.samplers.TPESampler(
                seed=number, n_startup_trials=0, multivariate=True, group=True, constant_liar=True
            )
        study = optuna.create_study(sampler=sampler, directions=["minimize"] * len(tuning.objectives))
        for values, found in measured:
            study.add_trial(_frozen(tuning.space, values, found))
        for values in running:
            study.add_trial(_frozen(tuning.space, values, None))
        trial = study.ask()
        chosen: dict[str, str] = {}
        for parameter in tuning.space:
            if parameter.active(chosen):
                chosen[parameter.name] = _text(parameter, trial._suggest(parameter.name, _distribution(parameter)))
    return chosen


def _frozen(space: tuple[Parameter, ...], values: dict[str, str], found: tuple[float, ...] | None) -> Any:
    import optuna

    given = {parameter.name: parameter for parameter in space if parameter.name in values}
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING if found is None else optuna.trial.TrialState.COMPLETE,
        values=found,
        params={name: _number(parameter, values[name]) for name, parameter in given.items()},
        distributions={name: _distribution(parameter) for name, parameter in given.items()},
    )


def _distribution(parameter: Parameter) -> Any:
    """Optuna's distribution; on a reverse logarithmic scale that of the distance from 1."""
    from optuna import distributions

    if parameter.kind == CATEGORICAL:
        return distributions.CategoricalDistribution([text for text, _ in parameter.categories])
    low, high, log = parameter.low, parameter.high, parameter.scale in (LOG, REVERSE_LOG)
    if parameter.kind == INTEGER:
        return distributions.IntDistribution(int(low), int(high), log=log, step=int(parameter.step or 1) if not log else 1)
    if parameter.scale == REVERSE_LOG:
        return distributions.FloatDistribution(1.0 - high, 1.0 - low, log=True)
    return distributions.FloatDistribution(low, high, log=log, step=float(parameter.step) if parameter.step else None)


def _number(parameter: Parameter, text: str) -> Any:
    """A value as its distribution has it."""
    if parameter.kind == CATEGORICAL:
        return text
    if parameter.kind == INTEGER:
        return int(float(text))
    if parameter.scale == REVERSE_LOG:
        return min(max(1.0 - float(text), 1.0 - parameter.high), 1.0 - parameter.low)
    return float(text)


def _text(parameter: Parameter, value: Any) -> str:
    if parameter.kind == CATEGORICAL:
        return str(value)
    if parameter.kind == INTEGER:
        return str(int(value))
    if parameter.scale == REVERSE_LOG:
        return spelled(min(max(1.0 - value, parameter.low), parameter.high))
    return parameter.nth(round((value - parameter.low) / float(parameter.step))) if parameter.step else spelled(value)
