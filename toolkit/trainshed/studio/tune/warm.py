"""What earlier tuning jobs have found, for one that starts warm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainshed.base.errors import TrainshedError
from trainshed.runner.state.job_json import masked
from trainshed.studio.batches.folder import shown

from .space import fits
from .trial import best_of
from .tuning import IDENTICAL, TuningJob
from .tuning_folder import TuningFolder, stored_tuning

# What may differ although data and algorithm are the same: where results go, and what only says how a run goes.
_APART = frozenset({
    "name", "full_name", "output", "upload", "checkpoints", "tags", "notes", "hyperparameters", "source_dir",
    "environment", "references", "max_runtime_seconds", "grace_seconds", "retries", "spot", "resources",
    "instance_type", "profile", "rules",
})  # fmt: skip


@dataclass(frozen=True)
class EarlierTrial:
    """One trial of an earlier tuning job: its values and its objective."""

    values: dict[str, str]
    value: float


def known_of(tuning: TuningJob, say: Callable[[str], None]) -> tuple[EarlierTrial, ...]:
    """What the parents have found: all their trials, or, where data or algorithm differ, the best of each.

    Their own parents' trials are not in it, as on the platform. Trials whose values are not in the space are left out.

    Args:
        say: told what is left out.

    Raises:
        TrainshedError: a parent is of another algorithm, data or objective than the warm start says.
    """
    found: list[EarlierTrial] = []
    for path in tuning.warm.parents:
        folder = TuningFolder(path)
        parent = stored_tuning(folder)
        if tuning.warm.kind == IDENTICAL:
            _compare(tuning, parent, path)
        trials = [trial for trial in folder.trials(parent.space) if trial.over and trial.value is not None]
        usable = [trial for trial in trials if fits(tuning.space, trial.values)]
        if len(usable) < len(trials):
            say(f"{shown(path)}: {len(trials) - len(usable)} of {len(trials)} trials are outside the search space: left out")
        if tuning.warm.kind == IDENTICAL:
            found += [EarlierTrial(trial.values, trial.value) for trial in usable if trial.value is not None]
        elif (best := best_of(usable, parent.objectives)) is not None and best.value is not None:
            found.append(EarlierTrial(best.values, best.value))
    return tuple(found)


def _compare(tuning: TuningJob, parent: TuningJob, path: str) -> None:
    """Raises TrainshedError where the two do not train the same on the same data for the same objective."""
    differ = [name for name, value in _same(tuning).items() if _same(parent).get(name) != value]
    if differ:
        raise TrainshedError(
            f"{shown(path)} is not of identical data and algorithm: {', '.join(differ)} differ",
            hint="warm_start: {type: transfer} tries the best of another tuning job, and takes none of its values on trust",
        )


def _same(tuning: TuningJob) -> dict[str, Any]:
    fixed = masked(tuning.job)
    searched = {parameter.name for parameter in tuning.space}
    own = {name: value for name, value in fixed["hyperparameters"].items() if name not in searched}
    job = {name: value for name, value in fixed.items() if name not in _APART}
    return {**job, "hyperparameters": own, "objective": tuning.aim}
