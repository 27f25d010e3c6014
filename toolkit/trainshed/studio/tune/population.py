"""Population-based training: members train in generations, and those that are behind go on from the checkpoints of the best.

Trials are numbered by generation: with 8 members, trials 1 to 8 are the first one. Each trains `interval` further than its
parent, from whose checkpoint it begins. At the end of a generation each member of the worst part is replaced by one of the
best part: with its checkpoint, and its values a little changed.

Source: Jaderberg et al., Population Based Training of Neural Networks, arXiv:1711.09846 (truncation selection; factors 0.8
and 1.2; resampling with probability 1/4).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainshed.base.errors import TrainshedError
from trainshed.machine.cloning import copy
from trainshed.studio.batches.folder import shown

from .space import CATEGORICAL, INTEGER, LINEAR, REVERSE_LOG, Parameter, spelled
from .trial import Trial, losses
from .tuning import Strategy, TuningJob
from .tuning_folder import TuningFolder

FACTORS = (0.8, 1.2)
RESAMPLED = 0.25
_OURS = "step-"  # how checkpoints of a Checkpointer begin


@dataclass(frozen=True)
class Member:
    """What the next trial is. parent: the trial whose checkpoint it goes on from, 0 for none."""

    values: dict[str, str]
    parent: int = 0


def generation_of(strategy: Strategy, number: int) -> int:
    """The generation of a trial, from 1."""
    return (number - 1) // strategy.size + 1


def is_waiting(tuning: TuningJob, trials: Sequence[Trial], number: int) -> bool:
    """Whether a trial can be given values only when others are over: all of the generation before."""
    before = generation_of(tuning.strategy, number) - 1
    return any(not trial.over for trial in trials if generation_of(tuning.strategy, trial.number) <= before)


def member(tuning: TuningJob, trials: Sequence[Trial], number: int) -> Member | None:
    """Trial `number`; None where no trial of the generation before has an objective.

    Args:
        trials: all that there are; those of the generations before are over.
    """
    strategy = tuning.strategy
    generation = generation_of(strategy, number)
    draw = random.Random(f"{strategy.seed}/{number}")
    if generation == 1:
        return Member(_drawn(tuning.space, draw))
    before = [trial for trial in trials if generation_of(strategy, trial.number) == generation - 1]
    told = {trial.number: loss for trial in before if (loss := losses(trial, tuning.objectives)) is not None}
    ranked = sorted(
        (trial for trial in before if trial.number in told), key=lambda trial: (told[trial.number], trial.number)
    )
    if not ranked:
        return None
    part = max(1, int(strategy.quantile * strategy.size))
    good, behind = ranked[:part], {trial.number for trial in ranked[max(part, len(ranked) - part) :]}
    own = next((trial for trial in ranked if trial.number == number - strategy.size), None)
    if own is not None and own.number not in behind:
        return Member(dict(own.values), own.number)
    ahead = good[draw.randrange(len(good))]
    return Member(_changed(tuning.space, ahead.values, draw), ahead.number)


def _drawn(space: Sequence[Parameter], draw: random.Random) -> dict[str, str]:
    values: dict[str, str] = {}
    for parameter in space:
        part = draw.random()
        if parameter.active(values):
            values[parameter.name] = parameter.at(part)
    return values


def _changed(space: Sequence[Parameter], values: Mapping[str, str], draw: random.Random) -> dict[str, str]:
    """Values a little further on; what has become active is drawn."""
    found: dict[str, str] = {}
    for parameter in space:
        part, factor, anew = draw.random(), draw.choice(FACTORS), draw.random() < RESAMPLED
        if not parameter.active(found):
            continue
        text = values.get(parameter.name)
        if text is None or (anew and parameter.kind == CATEGORICAL):
            text = parameter.at(part)
        elif parameter.kind != CATEGORICAL:
            text = _scaled(parameter, float(text), factor)
        found[parameter.name] = text
    return found


def _scaled(parameter: Parameter, value: float, factor: float) -> str:
    """A number times a factor, within its range and on its steps; on a reverse logarithmic scale the distance from 1."""
    moved = 1.0 - (1.0 - value) * factor if parameter.scale == REVERSE_LOG else value * factor
    if parameter.kind == INTEGER and round(moved) == value:
        moved = value + (1 if factor > 1 else -1)
    moved = min(max(moved, parameter.low), parameter.high)
    if parameter.step and parameter.scale == LINEAR:
        return parameter.nth(round((moved - parameter.low) / float(parameter.step)))
    return str(round(moved)) if parameter.kind == INTEGER else spelled(moved)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def checkpoints_of(folder: TuningFolder, number: int) -> str:
    """The checkpoint folder of a trial."""
    return f"{folder.path}/population/{number:04d}"


def inherit(folder: TuningFolder, trial: Trial) -> None:
    """Gives a trial a copy of its parent's checkpoints, once.

    Raises:
        TrainshedError: the parent has left none that can be gone on from, or they cannot be copied.
    """
    own, theirs = checkpoints_of(folder, trial.number), checkpoints_of(folder, trial.parent)
    if not trial.parent or os.path.isdir(own):
        return
    with folder.guarded():
        held = sorted(os.listdir(theirs)) if os.path.isdir(theirs) else []
        if not any(name.startswith(_OURS) for name in held):
            raise TrainshedError(
                f"trial {trial.parent} has left no checkpoint of a Checkpointer: {shown(theirs)} has nothing to inherit",
                hint=(
                    "checkpoints of the trainers of transformers and Lightning bring their learning rate back"
                    if any(name.startswith("checkpoint-") for name in held)
                    else "the script must save when it ends: checkpointer.save(step) (docs/checkpoints.md)"
                ),
            )
        aside = f"{own}.tmp"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(theirs, aside, copy_function=copy)
        os.rename(aside, own)


def forget_before(folder: TuningFolder, strategy: Strategy, number: int) -> None:
    """Removes the checkpoints that no trial from this one on can go on from: of the generations before its parents'."""
    last = (generation_of(strategy, number) - 2) * strategy.size
    for old in range(1, last + 1):
        shutil.rmtree(checkpoints_of(folder, old), ignore_errors=True)
