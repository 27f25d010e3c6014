"""Meetings at which the ranks of a group exchange objects: all begin alike, so that ranks at different places see it.

A message of another length or kind than the others expect may end a process inside of gloo, leave garbage, or be waited for.
So every exchange begins with a header of one length, which says what it is for.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..ground.errors import PipelineError

STEP, MODEL_STATE, OPTIMIZER_STATE = "a step", "model.state_dict()", "optimizer.state_dict()"
PARTIAL_STATE = "load_state_dict() of a partial state"
SAVE, LOAD, PRUNE = "save_checkpoint()", "load_checkpoint()", "prune_checkpoints()"
CLIP, SCALE = "clip_grad_norm_() or get_total_norm()", "the gradient scaler's unscale_()"
GENERATE, READ = "model.generate()", "a number of a divided tensor"
SAVE_WEIGHTS, LOAD_WEIGHTS = "model.save_weights()", "model.load_weights()"
CALLS = (
    *(STEP, MODEL_STATE, OPTIMIZER_STATE, PARTIAL_STATE, SAVE, LOAD, PRUNE, CLIP, SCALE, GENERATE, READ),
    *(SAVE_WEIGHTS, LOAD_WEIGHTS),
)
RECORD, WAYS, SUPPLY = "recording a forward", "choosing a recorded forward", "handing out a batch"
DIFFERENCE, GRADIENTS, REPORT = "looking for a difference", "checking gradients", "reporting times"
ROOM, BUFFERS, UNDIVIDED = "finding room to verify", "lending buffers to verify", "running the undivided model"
FINDINGS, AGAIN = "comparing with the undivided model", "running the undivided model again"
NORM, UPDATE = "comparing a norm", "comparing what an optimizer did"
ATTRIBUTES, RESULT = "lending what modules keep to verify", "handing out the result of the undivided model"
_PLACES = (
    *CALLS,
    *(RECORD, WAYS, SUPPLY, DIFFERENCE, GRADIENTS, REPORT, ROOM, BUFFERS, ATTRIBUTES, RESULT, UNDIVIDED, FINDINGS, AGAIN),
    *(NORM, UPDATE),
)
_NUMBERS = 5


def numbers(
    at: str, mine: Sequence[int], ranks: Sequence[int], group: dist.ProcessGroup, device: torch.device
) -> list[list[int]]:
    """Up to five numbers of each rank of a group. Collective.

    Args:
        at: what they are for.
        ranks: of the group, in order.

    Raises:
        PipelineError: on all ranks, if one of them is at something else.
    """
    head = torch.tensor([_PLACES.index(at), *mine, *[0] * (_NUMBERS - len(mine))], device=device)
    found = [torch.zeros_like(head) for _ in ranks]
    dist.all_gather(found, head, group=group)
    first, *others = [one.tolist() for one in found]
    for rank, other in zip(ranks[1:], others, strict=True):
        if other[0] != first[0]:
            where, there = _PLACES[other[0]], _PLACES[first[0]]
            raise _elsewhere(f"rank {rank}", where, f"rank {ranks[0]} of the same pipeline", there)
    return [one[1:] for one in (first, *others)]


def replicas_agree(at: str, mine: int, wish: bool, group: dist.ProcessGroup, device: torch.device) -> tuple[bool, bool]:
    """Returns whether all ranks of a group have the same number, and whether one of them has a wish. Collective.

    Args:
        at: what it is for.
        mine: below 2**62.

    Raises:
        PipelineError: on all ranks, if one of them is at something else.
    """
    place = _PLACES.index(at)
    most = torch.tensor([place, -place, mine, -mine, int(wish)], device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    last, first, largest, smallest, wished = most.tolist()
    if last != -first:
        raise _elsewhere("one rank", _PLACES[-first], "another one", _PLACES[last])
    return largest == -smallest, bool(wished)


def _elsewhere(one: str, where: str, other: str, there: str) -> PipelineError:
    return PipelineError(
        f"{one} is at {where} while {other} is at {there}",
        hint="call it on all ranks; only then write a file on one of them"
        if where in CALLS and there in CALLS
        else "do the same on all ranks; if the script does, report this with the model",
    )


def objects(at: str, mine: Any, ranks: Sequence[int], group: dist.ProcessGroup, device: torch.device) -> list[Any]:
    """Returns what each rank of a group gives, in order; `mine` alone where there is no other. Collective.

    Raises:
        PipelineError: on all ranks, if one of them is at something else.
    """
    if len(ranks) == 1:
        return [mine]
    packed = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8).to(device)
    lengths = [length for length, *_ in numbers(at, [len(packed)], ranks, group, device)]
    padded = torch.cat([packed, packed.new_zeros(max(lengths) - len(packed))])
    found = [torch.empty_like(padded) for _ in ranks]
    dist.all_gather(found, padded, group=group)
    return [pickle.loads(one[:length].cpu().numpy().tobytes()) for one, length in zip(found, lengths, strict=True)]
