"""Which rank holds which parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ..ground.errors import PipelineError
from ..ground.grid import Grid
from .shape import Cut


@dataclass(frozen=True)
class Placement:
    """holders: parameter -> pipeline ranks that hold it, first the one that saves it; the same on all ranks."""

    holders: Mapping[str, tuple[int, ...]]

    def local(self, rank: int) -> list[str]:
        """Names that a pipeline rank holds."""
        return [name for name, ranks in self.holders.items() if rank in ranks]

    def owned(self, rank: int) -> list[str]:
        """Names that a pipeline rank answers for: each parameter belongs to exactly one."""
        return [name for name, ranks in self.holders.items() if ranks[0] == rank]

    def shared(self) -> dict[str, tuple[int, ...]]:
        """Names held by several ranks."""
        return {name: ranks for name, ranks in self.holders.items() if len(ranks) > 1}


def place(root: nn.Module, cut: Cut, seat: Callable[[int], int]) -> Placement:
    """Each parameter goes to the ranks whose stages read it; one that nothing reads goes to where its module's next
    neighbour is, so that it is saved.

    Args:
        seat: tells which rank has a stage.
    """
    users = cut.users()
    holders: dict[str, tuple[int, ...]] = {}
    before: tuple[int, ...] = (0,)
    for name, _ in root.named_parameters():
        if name in users:
            before = tuple(sorted({seat(stage) for stage in users[name]}))
            holders[name] = before
        else:
            holders[name] = before[:1]
    return Placement(holders)


def renamed(known: Mapping[str, nn.Parameter], now: Mapping[str, nn.Parameter]) -> tuple[str, str] | None:
    """A parameter that has another name than it had: both of them."""
    names = {id(parameter): name for name, parameter in known.items()}
    found = ((names[id(parameter)], name) for name, parameter in now.items() if names.get(id(parameter), name) != name)
    return next(found, None)


def extend(before: Placement, fresh: set[str], now: Iterable[str], cut: Cut, seat: Callable[[int], int]) -> Placement:
    """Each fresh parameter goes to the ranks whose stages read it; others stay where they are.

    Args:
        fresh: names of parameters that nothing has read until now, or that are new.
        now: names of all parameters, in their order.
        seat: tells which rank has a stage.
    """
    users = cut.users()
    holders: dict[str, tuple[int, ...]] = {}
    near: tuple[int, ...] = (0,)
    for name in now:
        if name in users and name in fresh:
            near = tuple(sorted({seat(stage) for stage in users[name]}))
        else:
            near = before.holders.get(name, near[:1])
        holders[name] = near
    return Placement(holders)


def broadcast_state(root: nn.Module, grid: Grid, waiting: frozenset[str] = frozenset()) -> None:
    """Parameters and buffers of global rank 0 on all ranks, as they are before the first step. Collective.

    What is the same on all ranks is not written: where it was read from a file that lies in memory as it is, no rank needs
    memory for those parameters that others will hold.

    Args:
        waiting: names of parameters that have no values yet.

    Raises:
        PipelineError: a rank has another model.
    """
    if grid.world == 1:
        return
    with torch.no_grad():
        parameters = [one for name, one in root.named_parameters() if name not in waiting]
        tensors = [*parameters, *root.buffers()]
        found = [[b""]] * grid.world
        dist.all_gather_object(found, [_digest(one) for one in tensors], group=grid.control_group)
        for rank, digests in enumerate(found):
            if len(digests) != len(found[0]):
                raise PipelineError(
                    f"rank {rank} has {len(digests)} parameters and buffers, and rank 0 has {len(found[0])}",
                    hint="build the same model on all ranks",
                )
        for position, tensor in enumerate(tensors):
            if all(digests[position] == found[0][position] for digests in found):
                continue
            whole = tensor.detach().to(grid.device).contiguous()
            dist.broadcast(whole, src=0)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)


def _digest(tensor: torch.Tensor) -> bytes:
    """Of type and values."""
    values = tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)
    return hashlib.blake2b(values.cpu().numpy().data, person=str(tensor.dtype).encode()[-16:], digest_size=16).digest()


def broadcast_buffers(root: nn.Module, grid: Grid) -> None:
    """Buffers of replica 0 on all replicas, as DistributedDataParallel does before each forward. Collective."""
    if len(grid.replica_ranks) == 1:
        return
    buffers = [buffer for buffer in root.buffers() if buffer.numel() and not buffer.is_meta]  # a stand-in of another stage
    with torch.no_grad():
        for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
            same = [buffer for buffer in buffers if buffer.dtype == dtype]
            flat = torch.cat([buffer.reshape(-1) for buffer in same])
            dist.broadcast(flat, src=grid.replica_ranks[0], group=grid.replica_group)
            for buffer, part in zip(same, flat.split([buffer.numel() for buffer in same]), strict=True):
                buffer.copy_(part.view_as(buffer))
