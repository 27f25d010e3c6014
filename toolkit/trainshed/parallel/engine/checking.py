"""Checks that all ranks of a pipeline do the same, and that every parameter gets its gradient; explains what fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from ..errors import PipelineError
from ..grid import Grid
from ..plan.lines import comparison_lines, whole_lines
from ..plan.plan_file import Plan
from .gradients import GradientSync
from .shape import Cut
from .zero_bubble import Inseparable

_LOST = ("Connection closed", "Connection reset", "peer", "Broken pipe", "Timed out", "timed out", "gloo")


def compare(grid: Grid, mine: str, what: str) -> None:
    """Makes sure that all ranks of a pipeline have the same `mine`. Collective.

    Args:
        what: says what a rank that differs did, for the message.

    Raises:
        PipelineError: a rank differs.
    """
    if grid.world == 1:
        return
    found: list[Any] = [None] * grid.world
    dist.all_gather_object(found, mine, group=grid.control_group)
    leader = grid.pipeline_ranks[0]
    different = [rank for rank in grid.pipeline_ranks if found[rank] != found[leader]]
    if different:
        raise PipelineError(
            f"rank {different[0]} {what} than rank {leader} of the same pipeline",
            hint="all ranks of one pipeline need the same data and model: split data by dp_rank() of dp_size()",
        )


def check_gradients(grid: Grid, cut: Cut, sync: GradientSync, inseparable: Mapping[int, Inseparable]) -> None:
    """After the first step of a shape: every parameter that the record says is trained has a gradient. Collective.

    Args:
        inseparable: stage -> why it does not split its backward; rank 0 prints them.

    Raises:
        PipelineError: on all ranks, if a parameter of one of them has no gradient, or one of another shape.
    """
    users = cut.users()
    here = grid.place.pipeline
    ranks = len(grid.pipeline_ranks)
    missing = [
        name
        for name in sorted(cut.trace.reached)
        if name in sync.parameters
        and sync.parameters[name].grad is None
        and {stage % ranks for stage in users.get(name, ())} == {here}
    ]
    wrong = [
        name
        for name, parameter in sync.parameters.items()
        if parameter.grad is not None and tuple(parameter.grad.shape) != tuple(parameter.shape)
    ]
    names_of = {id(parameter): name for name, parameter in sync.parameters.items()}
    whole = {
        stage: (error.reason, sorted(names_of[id(p)] for p in error.parameters if id(p) in names_of))
        for stage, error in inseparable.items()
    }
    found: list[Any] = [None] * grid.world
    dist.all_gather_object(found, (missing + wrong, whole), group=grid.control_group)
    lines = [
        f"rank {rank}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        for rank, (names, _) in enumerate(found)
        if names
    ]
    if grid.rank == 0:
        for line in whole_lines({stage: why for _, stages in found for stage, why in stages.items()}):
            print(line, flush=True)
    if lines:
        raise PipelineError(
            f"self-check of the first step: parameters without the gradient that they should have: {'; '.join(lines)}",
            hint="report this with the model; until then name the modules around in `atomic`",
        )


def report(grid: Grid, plan: Plan, seconds: float, microbatches: int, busy: Mapping[int, list[float]]) -> None:
    """Rank 0 prints what a step took beside what was planned. Collective.

    Args:
        seconds: what the step took.
        busy: stage -> [forward, backward] seconds, summed over microbatches.
    """
    mine = [(stage, 1e3 * f / microbatches, 1e3 * b / microbatches) for stage, (f, b) in busy.items()]
    found: list[Any] = [None] * grid.world
    dist.all_gather_object(found, mine if grid.place.replica == 0 else [], group=grid.control_group)
    if grid.rank == 0:
        for line in comparison_lines(plan, 1e3 * seconds, [entry for part in found for entry in part]):
            print(line, flush=True)


def explain(error: Exception, rank: int) -> Exception:
    """The error, or a better one if it says that another rank was lost."""
    if isinstance(error, PipelineError) or not isinstance(error, RuntimeError):
        return error
    text = str(error)
    if not any(word in text for word in _LOST):
        return error
    return PipelineError(
        f"rank {rank} lost another rank of the job during a step",
        details=text,
        hint="the cause is in the log of the rank that ended first",
    )
