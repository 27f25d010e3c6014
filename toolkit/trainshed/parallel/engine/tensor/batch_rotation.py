"""Whose batch the ranks of a tensor group run, one after the other.

The ranks hold parts of one model, so they run the same batch at a time. Where each is given its own, as data parallel ranks
are, they exchange their batches and the states of their random generators, and all run the batch of the first rank, then
that of the second: each batch gives what it gives in data parallel training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ...ground.errors import PipelineError
from ...ground.grid import TensorGroup
from ...ground.tree import leaves, map_leaves
from ...tracing import host_rng as dice
from ...tracing import rng
from ..batch import Microbatch, digest
from ..object_collectives import STEP, SUPPLY, objects

_ONE_BATCH = {
    "tensor": "with prescaled_batch = true split data by rdp_rank() of rdp_size(); or set it to false",
    "context": "all ranks of a context group are given the same batch: split data by dp_rank() of dp_size()",
    "tensor x context": "all ranks of a tensor group and of its context groups are given the same batch: split data by "
    "rdp_rank() of rdp_size()",
}
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


@dataclass
class Turn:
    """One rank's batch.

    parts: rows of each microbatch, divided by their mean.
    random, rolled: the states of the generators of torch, and of Python and numpy, from which it starts.
    """

    microbatches: list[Microbatch]
    parts: list[float]
    random: torch.Tensor
    rolled: dice.State


def exchange(
    group: TensorGroup, microbatches: list[Microbatch], parts: list[float], mode: str, device: torch.device, *, same: bool
) -> list[Turn]:
    """The turns of a step, in the order of the group's ranks. Collective over the group.

    Args:
        mode: what is called, and how; the same on all ranks.
        same: whether all ranks are given the same batch, which makes one turn, with the first rank's random numbers.

    Raises:
        PipelineError: on all ranks, if one of them calls something else, or gives a batch of another form.
    """
    random, rolled = rng.get_state(device), dice.get_state()
    if len(group.ranks) == 1:
        return [Turn(microbatches, parts, random, rolled)]
    own = leaves(microbatches)
    form = [_form(leaf) for leaf in leaves(microbatches[0])]
    found = objects(
        STEP, (mode, form, digest(microbatches) if same else 0, random, rolled), group.ranks, group.group, device
    )
    for rank, (other, others, number, *_) in zip(group.ranks, found, strict=True):
        if other != found[0][0]:
            raise PipelineError(
                f"rank {rank} runs another step function than rank {group.ranks[0]} of the same {group.kind} group, or in "
                "another mode",
                hint="call train(), eval() and the steps on all ranks alike",
            )
        if others != found[0][1]:
            raise PipelineError(
                f"rank {rank} gives the step other kinds of arguments than rank {group.ranks[0]} of the same {group.kind} "
                "group",
                hint="give tensors, numbers and texts in the same places on all ranks",
            )
        if number != found[0][2]:
            raise PipelineError(
                f"rank {rank} was given another batch than rank {group.ranks[0]} of the same {group.kind} group",
                hint=_ONE_BATCH[group.kind],
            )
    if same:
        return [Turn(microbatches, parts, found[0][3], found[0][4])]
    sent: dict[int, Any] = {}
    for leaf in own:  # a tensor that is in every microbatch goes once
        sent.setdefault(id(leaf), _plain(leaf))
    given = objects(SUPPLY, (len(microbatches), parts, [sent[id(leaf)] for leaf in own]), group.ranks, group.group, device)
    turns = []
    for number, ((count, others, values), (*_, state, dices)) in enumerate(zip(given, found, strict=True)):
        theirs = microbatches if number == dist.get_rank(group.group) else _filled(microbatches[0], count, values)
        turns.append(Turn(theirs, others, state, dices))
    return turns


def _form(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{leaf.dtype} of {leaf.ndim} axes"
    return type(leaf).__name__ if isinstance(leaf, _PLAIN) else "another"


def _plain(leaf: Any) -> Any:
    """What travels: a tensor's values alone, not the batch that it is a view of."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().clone()
    return leaf if isinstance(leaf, _PLAIN) else None


def _filled(microbatch: Microbatch, count: int, values: list[Any]) -> list[Microbatch]:
    """A batch in the form of this rank's, with another rank's values; what cannot travel is this rank's own."""
    source = iter(values)

    def filled(leaf: Any) -> Any:
        value = next(source)
        if isinstance(leaf, torch.Tensor):
            return value.to(leaf.device)
        return value if isinstance(leaf, _PLAIN) else leaf

    return [map_leaves(filled, microbatch) for _ in range(count)]
