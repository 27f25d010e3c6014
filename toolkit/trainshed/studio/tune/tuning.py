"""A tuning job as the person at the keyboard describes it: complete, checked, frozen."""

from __future__ import annotations

from dataclasses import dataclass

from trainshed.runner.job.job import Job, Notify
from trainshed.runner.job.places import BUILT_IN, HERE, known

from .space import Parameter

GRID, RANDOM, BAYESIAN, HYPERBAND, POPULATION = "grid", "random", "bayesian", "hyperband", "population"
STRATEGIES = (GRID, RANDOM, BAYESIAN, HYPERBAND, POPULATION)
AUTO, TPE, GP = "auto", "tpe", "gp"
SAMPLERS = (AUTO, TPE, GP)
MINIMIZE, MAXIMIZE = "minimize", "maximize"
LAST, BEST = "last", "best"
OFF, MEDIAN, ASHA = "off", "median", "asha"
STEP, EPOCH, REPORT = "step", "epoch", "report"
IDENTICAL, TRANSFER = "identical", "transfer"
PLACES = tuple(place.name for place in BUILT_IN.values() if place.acts and place.can.tune)  # beside those of packages
MOST_FAILED = 5


def runs_trials(place: str) -> bool:
    """Whether there is a place of this name, and trials may run there."""
    found = known(place)
    return found is not None and bool(found.acts) and found.can.tune


@dataclass(frozen=True)
class Objective:
    """What is to be made small or large.

    metric: its name. goal: minimize or maximize.
    value: which of a run's values counts: the last one, as on the platform, or the best one.
    """

    metric: str
    goal: str = MINIMIZE
    value: str = LAST

    def better(self, one: float, other: float) -> bool:
        """Whether a value is better than another one; neither may be NaN."""
        return one < other if self.goal == MINIMIZE else one > other

    def loss(self, value: float) -> float:
        """The value as something to be made small."""
        return value if self.goal == MINIMIZE else -value


@dataclass(frozen=True)
class Strategy:
    """How values are chosen.

    sampler: of bayesian: auto, tpe or gp. seed: makes the choice repeatable.
    size, generations: of population: its members, and how often they are compared.
    length, interval: of population: the hyperparameter that says how long a job trains, and what each generation adds to it.
    quantile: of population: which part of the members is replaced by as many of the best.
    """

    kind: str = BAYESIAN
    sampler: str = AUTO
    seed: int = 0
    size: int = 0
    generations: int = 0
    length: str = ""
    interval: int = 1
    quantile: float = 0.25


@dataclass(frozen=True)
class EarlyStopping:
    """Which trials end before they are over.

    kind: off, median or asha.
    least, most: resource at which ASHA first compares trials, and beyond which it does not; most is 0 for no end.
    factor: one trial in so many goes on. brackets: how many different first resources there are (Hyperband).
    resource: what counts: the step or the epoch that the script names beside the objective, or the number of its values.
    """

    kind: str = OFF
    least: int = 1
    most: int = 0
    factor: int = 3
    brackets: int = 1
    resource: str = STEP


@dataclass(frozen=True)
class Limits:
    """When no further trial is started. 0 stands for no limit.

    max_runtime: seconds in which trials run; max_billable: of all trials together, times hosts. Beyond them
        trials are stopped.
    max_failed: failed trials after which it is given up, as long as none has succeeded.
    target: a value of the objective that is good enough. not_improving: trials without a new best one.
    """

    max_jobs: int = 0
    max_parallel: int = 1
    max_runtime: float = 0.0
    max_billable: float = 0.0
    max_failed: int = MOST_FAILED
    target: float | None = None
    not_improving: int = 0


@dataclass(frozen=True)
class WarmStart:
    """Earlier tuning jobs whose trials are known from the start.

    parents: their folders. kind: `identical` data and algorithm, or `transfer` to others.
    """

    parents: tuple[str, ...] = ()
    kind: str = IDENTICAL


@dataclass(frozen=True)
class TuningJob:
    """One tuning job.

    name: of the tuning job and its folder. job: what each trial runs, but for its own hyperparameters.
    further: objectives after the first, where there are several.
    place: where trials run; elsewhere than here each is a job of its own.
    notify: who is told when it starts and ends; the job's own `notify` tells of each trial.
    raw: whether hyperparameters are handed on as texts, letter by letter, as those of a request are.
    notes: what the user should know of how it was read.
    """

    name: str
    job: Job
    space: tuple[Parameter, ...]
    objective: Objective
    strategy: Strategy = Strategy()
    early: EarlyStopping = EarlyStopping()
    limits: Limits = Limits()
    warm: WarmStart = WarmStart()
    further: tuple[Objective, ...] = ()
    place: str = HERE.name
    raw: bool = False
    notify: tuple[Notify, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All objectives, in the order of the file."""
        return (self.objective, *self.further)

    @property
    def aim(self) -> str:
        """What is asked for, in a line: `minimize loss, maximize accuracy`."""
        return ", ".join(f"{one.goal} {one.metric}" for one in self.objectives)
