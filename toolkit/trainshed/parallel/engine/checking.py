"""Checks that all ranks of a pipeline do the same, and that every parameter gets its gradient."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..ground.errors import Different, PipelineError
from ..ground.grid import Grid
from ..ground.torch_private import gradient_hooks
from ..plan.lines import comparison_lines, whole_lines
from ..plan.plan_file import Plan
from .batch import Microbatch, digest
from .gradients import GradientSync
from .object_collectives import DIFFERENCE, GRADIENTS, REPORT, STEP, numbers, objects, replicas_agree
from .shape import Cut, RecordedForward
from .zero_bubble import Inseparable

_ONE_DATA = (
    "all ranks of one pipeline need the same data and model: split data by dp_rank() of dp_size(); "
    "ranks other than the first may give empty tensors instead"
)


_ONE_BATCH = (
    "all ranks of the stages of one {kind} group need the same data and model: split data by {by}; "
    "stages other than the first may give empty tensors instead"
)


def compare(grid: Grid, at: str, mine: str, what: str, hint: str = _ONE_DATA, more: Any = None) -> list[Any]:
    """Makes sure that all ranks with one batch have the same `mine`. Collective over them: replicas may be elsewhere.

    Args:
        at: what it is for, one of the places of `meeting`.
        what: says what a rank that differs did, for the message.
        more: what else a rank has to tell, which may differ.

    Returns:
        `more` of each rank.

    Raises:
        Different: a rank differs.
    """
    found = in_company(grid, at, (mine, more))
    different = [rank for rank, other in zip(grid.company_ranks, found, strict=True) if other[0] != found[0][0]]
    if different:
        raise Different(
            f"rank {different[0]} {what} than rank {grid.company_ranks[0]} {of_the_same(grid, different[0])}",
            hint=hint,
        )
    return [one for _, one in found]


@dataclass(frozen=True)
class Met:
    """The facts that the ranks of a pipeline found when they met.

    seed: of the first rank.
    record: number of the record that all of them know to fit; -1 where they do not.
    lacking: whether a rank has empty tensors where the first one has values.
    """

    seed: int
    record: int
    lacking: bool = False


def first_difference(grid: Grid, mine: Mapping[str, str]) -> str:
    """A name that has another text on another rank with the same batch, as the end of a message; empty if there is none.
    Collective over them."""
    found = in_company(grid, DIFFERENCE, dict(mine))
    for rank, other in zip(grid.company_ranks, found, strict=True):
        for name in {**found[0], **other}:
            if found[0].get(name) != other.get(name):
                texts = [one.get(name, "as it was")[:80] for one in (other, found[0])]
                return f": {name} is {texts[0]} on rank {rank}, and {texts[1]} on rank {grid.company_ranks[0]}"
    return ""


def meet(grid: Grid, call: str, mode: str = "", batch: int = 0, seed: int = 0, empty: int = 0, record: int = -1) -> Met:
    """Has the ranks that run one batch begin together. Collective.

    Args:
        call: one of `meeting.CALLS`.
        mode: how it is called.
        batch: digest of the inputs.
        empty: how many tensors among the inputs have no elements.
        record: number of the record that is known to fit, -1 if none is.

    Raises:
        PipelineError: on all ranks, if one of them does something else, or has another batch.
    """
    ranks = grid.company_ranks
    if grid.settings.sharded_data_parallel_degree > 1 and not grid.left:
        replicas_agree(call, 0, False, grid.control_group, torch.device("cpu"))
    if grid.tensor is not None and len(ranks) == 1:
        replicas_agree(call, 0, False, grid.tensor.group, grid.device)
    if len(ranks) == 1:
        return Met(seed, record)
    if grid.left:
        raise PipelineError(f"the pipeline has stopped, for a step failed: {call} is not possible any more")
    facts = [zlib.crc32(mode.encode()), batch, seed, empty, record]
    first, *others = numbers(call, facts, ranks, grid.company_group, grid.device)
    for rank, other in zip(ranks[1:], others, strict=True):
        if other[0] != first[0]:
            raise PipelineError(
                f"rank {rank} runs another step function than rank {ranks[0]} {of_the_same(grid, rank)}, or in another mode",
                hint="call train(), eval() and the steps on all ranks alike",
            )
        if other[1] != first[1] and other[3] <= first[3]:
            raise PipelineError(
                f"rank {rank} was given another batch than rank {ranks[0]} {of_the_same(grid, rank)}",
                hint=_hint(grid),
            )
    agreed = all(other[4] == first[4] for other in others)
    return Met(int(first[2]), int(first[4]) if agreed else -1, any(other[1] != first[1] for other in others))


def _hint(grid: Grid) -> str:
    """What to do where ranks that run one batch were given several."""
    if grid.joint is None:
        return _ONE_DATA
    by = "dp_rank() of dp_size()" if grid.tensor is None else "rdp_rank() of rdp_size()"
    return _ONE_BATCH.format(kind=grid.joint.kind, by=by)


def of_the_same(grid: Grid, rank: int) -> str:
    """Says what a rank has in common with the first one of those that run one batch."""
    same = grid.places[rank].replica == grid.places[grid.company_ranks[0]].replica
    return "of the same pipeline" if same else "with the same batch"


def meet_with_replicas(grid: Grid, call: str) -> None:
    """Has all ranks of all replicas begin together. Collective.

    Args:
        call: one of `meeting.CALLS`.

    Raises:
        PipelineError: on all ranks, if one of them does something else.
    """
    meet(grid, call)
    if len(grid.replica_ranks) > 1 and grid.settings.sharded_data_parallel_degree == 1:
        replicas_agree(call, 0, False, grid.replica_group, grid.device)


def agree_with_replicas(grid: Grid, mine: bytes, what: str, wish: bool = False) -> bool:
    """Makes sure that the ranks that hold the same stages have the same `mine`; whether one of them has a wish. Collective
    over the replicas.

    Raises:
        PipelineError: they differ, on all of them.
    """
    if len(grid.replica_ranks) > 1:
        return _alike(grid.replica_group, grid.device, mine, f"the replicas differ in {what}", wish)
    return wish


def same_batch(grid: Grid, microbatches: list[Microbatch]) -> bool:
    """Returns whether all ranks that have other batches were given the same. Collective over them."""
    return replicas_agree(STEP, digest(microbatches), False, grid.batches[1], grid.device)[0]


def same_everywhere(grid: Grid, mine: bytes, what: str, group: dist.ProcessGroup | None = None) -> None:
    """Makes sure that all ranks have the same `mine`. Collective.

    Args:
        group: of all ranks, for tensors on the CPU; by default the one that stays when steps have ended.

    Raises:
        PipelineError: they differ, on all of them.
    """
    if grid.world > 1:
        _alike(group if group is not None else grid.control_group, torch.device("cpu"), mine, f"the ranks differ in {what}")


def _alike(group: dist.ProcessGroup, device: torch.device, mine: bytes, problem: str, wish: bool = False) -> bool:
    number = int.from_bytes(hashlib.sha256(mine).digest()[:7], "big")
    same, wished = replicas_agree(STEP, number, wish, group, device)
    if not same:
        raise PipelineError(problem, hint="do the same on all ranks, before the same step")
    return wished


def check_gradients(
    grid: Grid, ways: Sequence[RecordedForward], sync: GradientSync, inseparable: Mapping[int, Inseparable], skipped: bool
) -> None:
    """After the first step of a shape: every parameter that the record says is trained has a gradient. Collective over the
    pipeline.

    Args:
        ways: that the step's microbatches went; they are marked as checked. Where not all values were real when one was
            recorded, a module that decides by values may have done something else, and only modules none of whose parameters
            got a gradient count.
        skipped: whether a microbatch was left out of the backward here: then the ways stay to be checked.
        inseparable: stage -> why it does not split its backward; rank 0 prints them.

    Raises:
        PipelineError: on all ranks of the pipeline, if a parameter of one of them has no gradient, or one of another shape.
    """
    missing: set[str] = set()
    for way in ways:
        missing |= _missing(grid, way.cut, sync, measured=way.measured)
    wrong = [name for name, parameter in sync.parameters.items() if sync.arrived(name) not in (None, tuple(parameter.shape))]
    names_of = {id(parameter): name for name, parameter in sync.parameters.items()}
    whole = {
        stage: (error.reason, sorted(names_of[id(p)] for p in error.parameters if id(p) in names_of))
        for stage, error in inseparable.items()
    }
    found = in_company(grid, GRADIENTS, (sorted(missing) + wrong, whole, skipped))
    if any(skipped for *_, skipped in found):
        return
    for way in ways:
        way.checked = True
    lines = [
        f"rank {rank}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        for rank, (names, *_) in zip(grid.company_ranks, found, strict=True)
        if names
    ]
    if grid.rank == 0:
        for line in whole_lines({stage: why for _, stages, _ in found for stage, why in stages.items()}):
            print(line, flush=True)
    if lines:
        raise PipelineError(
            f"self-check of the first step: parameters without the gradient that they should have: {'; '.join(lines)}",
            hint="report this with the model; until then name the modules around in `atomic`",
        )


def refuse_hooks(root: nn.Module, ways: Sequence[RecordedForward]) -> None:
    """Before a backward.

    Raises:
        PipelineError: a parameter that several stages read has a gradient hook, which would be given parts of the gradient.
    """
    several = {name for way in ways for name in way.cut.several}
    if not several:
        return
    hooked = [name for name, parameter in root.named_parameters() if name in several and gradient_hooks(parameter)]
    if hooked:
        raise PipelineError(
            f"{hooked[0]!r} has a gradient hook (register_hook), and is read by several stages, each of which has a part of "
            "the gradient",
            hint="put the modules that share it on one stage with set_partition, or change the gradient after the step",
        )


def _missing(grid: Grid, cut: Cut, sync: GradientSync, *, measured: bool) -> set[str]:
    """Parameters of this rank alone that have no gradient although the record says that they are trained."""
    here, users = grid.place.pipeline, cut.users()
    missing = {
        name
        for name in cut.trace.reached
        if name in sync.parameters
        and sync.arrived(name) is None
        and {grid.seat(stage) for stage in users.get(name, ())} == {here}
    }
    if measured:
        return missing
    trained = {name for name in sync.parameters if sync.arrived(name) is not None}
    return missing - {
        name for event in cut.trace.events if trained.intersection(event.parameters) for name in event.parameters
    }


def report(grid: Grid, plan: Plan, seconds: float, microbatches: int, busy: Mapping[int, list[float]]) -> None:
    """Rank 0 prints what a step took beside what was planned. Collective over the pipeline.

    Args:
        seconds: what the step took.
        busy: stage -> [forward, backward] seconds, summed over microbatches.
    """
    mine = [(stage, 1e3 * f / microbatches, 1e3 * b / microbatches) for stage, (f, b) in busy.items()]
    found = gathered(grid, REPORT, mine)
    if grid.rank == 0:
        for line in comparison_lines(plan, 1e3 * seconds, [entry for part in found for entry in part]):
            print(line, flush=True)


def in_company(grid: Grid, at: str, mine: Any) -> list[Any]:
    """As `gathered`, of all ranks that run one batch: with tensor groups those of several pipelines."""
    return objects(at, mine, grid.company_ranks, grid.company_group, grid.device)


def gathered(grid: Grid, at: str, mine: Any) -> list[Any]:
    """Returns what each rank of the pipeline gives, in order. Collective over it.

    Args:
        at: what it is for, one of the places of `meeting`.

    Raises:
        PipelineError: on all ranks, if one of them is at something else.
    """
    return objects(at, mine, grid.pipeline_ranks, grid.pipeline_group, grid.device)
