"""The parameters of a rank's stages, sharded over the replicas of those stages (ZeRO-3, once a step).

Between steps a rank holds a part of each of its parameters, along the first dimension: a DTensor in the module, as FSDP2
has it, of which gradient, optimizer state and checkpoint are sharded alike. A step begins with one gather of them, after
which the modules have the parameters that forwards were recorded with; it ends with sums of gradients of which each rank
gets its part. So in a step there are all parameters and gradients of the stages, and otherwise only parts.

Where there are more replicas than a parameter has parts, the parts are replicated (HSDP). Where modules are divided among
the ranks of a tensor group, what a rank has of a parameter is sharded, over the ranks that have the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..ground.errors import PipelineError
from ..ground.grid import Grid
from ..ground.halves import stays_half
from ..ground.shards import local, refuse_hook, tensor_axis
from .exchange import Exchange, Exchanged, Hand
from .object_collectives import STEP, replicas_agree
from .renamed import all_gather, reduce_scatter
from .shard_mesh import ShardMesh

GATHERED_BYTES = 25 * 2**20


class StageShards(Exchange):
    """The shards that one rank holds of its parameters.

    Args:
        on_shards: takes `id` -> name of the parameters before, and name -> parameter after they were sharded.

    Raises:
        PipelineError: the degree does not divide the number of replicas.
    """

    def __init__(self, root: nn.Module, grid: Grid, on_shards: Hand) -> None:
        self._where = ShardMesh(grid)
        super().__init__(root, on_shards)
        self._grid, self._degree, self._place = grid, self._where.degree, self._where.place

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer goes on with the shards of parameters that it was given before the first step.

        Raises:
            PipelineError: it is LBFGS, which needs whole gradients.
        """
        if isinstance(optimizer, torch.optim.LBFGS) and self._known:
            raise PipelineError(
                "LBFGS needs whole gradients, and those of this job are sharded",
                hint="leave out sharded_data_parallel_degree, or use another optimizer",
            )
        super().follow(optimizer)

    # Steps -----------------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        shards = [(name, one.part) for name, one in self._known.items()]
        facts = [(name, tuple(shard.shape), shard.dtype, shard.requires_grad) for name, shard in shards]
        mine = int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:7], "big")
        grid = self._grid
        replicas_agree(STEP, 0, False, grid.control_group, torch.device("cpu"))
        found = [torch.zeros(1, dtype=torch.int64) for _ in grid.places]
        dist.all_gather(found, torch.tensor([mine]), group=grid.control_group)
        of_place: dict[int, set[int]] = {}
        for place, one in zip(grid.places, found, strict=True):
            of_place.setdefault(place.pipeline, set()).add(int(one))
        if any(len(kinds) > 1 for kinds in of_place.values()):  # known to all ranks: none goes on
            raise PipelineError(
                "the replicas differ in which parameters they have, or train",
                hint="do the same on all ranks, before the same step",
            )

    def take(self, names: Iterable[str]) -> None:
        """Shards parameters of this rank, which are in the modules."""
        parameters = dict(self._root.named_parameters())
        with torch.no_grad(), torch.inference_mode(False):
            for name in names:
                whole = parameters[name]
                if name in self._known and self._known[name].whole is whole:
                    continue
                part = self._part_of(local(whole.detach())).clone()
                shard = nn.Parameter(self._where.dtensor(part, whole), requires_grad=whole.requires_grad)
                stays_half(shard, whole)
                self._known[name] = Exchanged(whole, shard, type(whole), local(whole.detach()).stride())

    def _gather(self) -> None:
        for name, one in self._known.items():
            refuse_hook(name, one.part, "register hooks before the first step, or change the gradient after the step")
        for names in self.bunches(self._known):
            self._gather_bunch(names)

    def _gather_bunch(self, names: Sequence[str]) -> None:
        """Whole values of parameters of one type."""
        known = [self._known[name] for name in names]
        with torch.no_grad(), torch.inference_mode(False):
            parts = [self._padded(local(one.part.detach()), local(one.whole)) for one in known]
            mine = torch.cat(parts).view(torch.uint8)  # gloo does not know every type
            flat = torch.empty(self._degree * mine.numel(), dtype=torch.uint8, device=mine.device)
            all_gather(flat, mine, group=self._grid.parts_group)
            table = flat.view(parts[0].dtype).view(self._degree, -1)
            columns = table.split([len(part) for part in parts], dim=1)
            for one, column in zip(known, columns, strict=True):
                room = local(one.whole)
                value = torch.empty_strided(room.shape, one.stride, dtype=room.dtype, device=column.device)
                value.copy_(column.reshape(-1)[: room.numel()].view(room.shape))
                self._revive(one, value)

    # Gradients -------------------------------------------------------------------------------------------------------

    def reduce(self, parameters: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor]) -> Reduced:
        """Begins to sum gradients over the replicas; of the sum this rank gets its part.

        Args:
            parameters: of one type, all or none of them divided among the ranks of the tensor group.
            gradients: what this rank has of them.
        """
        rows = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            length = self._length(local(parameter))
            if not parameter.dim():
                rows.append(gradient.reshape(1, 1).expand(self._degree, 1))
                continue
            flat = gradient.reshape(-1)
            missing = self._degree * length - flat.numel()
            rows.append((torch.cat([flat, flat.new_zeros(missing)]) if missing else flat).view(self._degree, length))
        table = torch.cat(rows, dim=1) if len(rows) > 1 else rows[0].contiguous()
        mine = torch.empty_like(table[0])
        work = reduce_scatter(mine, table.view(-1), group=self._grid.parts_group, async_op=True)
        tensor = self._grid.tensor
        also = [self._grid.copies_group] if self._grid.copies_group is not None else []
        if tensor is not None and tensor_axis(parameters[0]) is None:
            also.append(tensor.group)
        return Reduced(mine, table, [row.shape[1] for row in rows], work, also)

    def put(self, name: str, part: torch.Tensor) -> None:
        """Adds this rank's part of a gradient, padded, to that of earlier steps."""
        shard = self._known[name].part
        own = local(shard.detach())
        gradient = self._where.dtensor(part[: own.numel()].view(own.shape).clone(), shard)
        shard.grad = gradient if shard.grad is None else shard.grad.add_(gradient)

    def gradient(self, name: str) -> torch.Tensor | None:
        """The sharded gradient."""
        return self._known[name].part.grad

    def forget_gradient(self, name: str) -> None:
        """There is none any more."""
        self._known[name].part.grad = None

    # Parts -----------------------------------------------------------------------------------------------------------

    def _length(self, parameter: torch.Tensor) -> int:
        """Elements of the largest part."""
        if not parameter.dim():
            return 1
        rows = -(-parameter.shape[0] // self._degree)
        return rows * (parameter.numel() // max(parameter.shape[0], 1))

    def _part_of(self, value: torch.Tensor) -> torch.Tensor:
        """This rank's part, as torch.chunk cuts; a number is on all ranks."""
        if not value.dim():
            return value
        rows = -(-value.shape[0] // self._degree)
        start = min(self._place * rows, value.shape[0])
        return value[start : start + rows].contiguous()

    def _padded(self, part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        flat = part.reshape(-1)
        missing = self._length(parameter) - flat.numel()
        return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat

    def bunches(self, names: Iterable[str]) -> Iterator[list[str]]:
        """Names of parameters of one type, all or none of them divided, so many at once that their memory beside the
        parameters is small."""
        bunch: list[str] = []
        size, kind = 0, None
        for name in names:
            shard = self._known[name].part
            own = shard.dtype, tensor_axis(shard) is None
            if bunch and (size > GATHERED_BYTES or own != kind):
                yield bunch
                bunch, size = [], 0
            bunch.append(name)
            kind, size = own, size + shard.numel() * shard.element_size()
        if bunch:
            yield bunch


class Reduced:
    """A sum of gradients that is under way.

    Args:
        mine: where this rank's parts come to lie.
        table: what is sent.
        lengths: of the parts.
        also: groups of ranks with the same parts, over which these are summed as well.
    """

    def __init__(
        self, mine: torch.Tensor, table: torch.Tensor, lengths: list[int], work: Any, also: Sequence[dist.ProcessGroup]
    ) -> None:
        self._mine, self._table, self._lengths, self._work, self._also = mine, table, lengths, work, also

    def parts(self) -> tuple[torch.Tensor, ...]:
        """This rank's parts of the sums, when they are there. Collective where parts are replicated."""
        self._work.wait()
        del self._table
        for group in self._also:
            dist.all_reduce(self._mine, group=group)
        return self._mine.split(self._lengths)
