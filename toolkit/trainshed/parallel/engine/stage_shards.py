"""The parameters of a rank's stages, sharded over the replicas of those stages (ZeRO-3, once a step).

Between steps a rank holds a part of each of its parameters, along the first dimension: a DTensor in the module, as FSDP2
has it, of which gradient, optimizer state and checkpoint are sharded alike. A step begins with one gather of them, after
which the modules have the parameters that forwards were recorded with; it ends with sums of gradients of which each rank
gets its part. So in a step there are all parameters and gradients of the stages, and otherwise only parts.

Where there are more replicas than a parameter has parts, the parts are replicated (HSDP).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..errors import PipelineError
from ..grid import Grid
from ..halves import stays_half
from ..shards import local
from .exchange import Exchange, Exchanged, Hand
from .meeting import STEP, replicas_agree
from .renamed import all_gather, reduce_scatter

GATHERED_BYTES = 25 * 2**20


class StageShards(Exchange):
    """What one rank holds of its parameters.

    Args:
        on_shards: takes `id` -> name of the parameters before, and name -> parameter after they were sharded.

    Raises:
        PipelineError: the degree does not divide the number of replicas.
    """

    def __init__(self, root: nn.Module, grid: Grid, on_shards: Hand) -> None:
        degree, replicas = grid.settings.sharded_data_parallel_degree, len(grid.replica_ranks)
        if replicas % degree:
            raise PipelineError(
                f"sharded_data_parallel_degree = {degree} does not divide {replicas} replicas",
                hint=f"{grid.world} ranks in pipelines of {len(grid.pipeline_ranks)} make that many",
            )
        super().__init__(root, on_shards)
        self._grid, self._degree = grid, degree
        kind = grid.device.type
        # torch keeps what it finds out about a mesh for all that are equal: also for one with groups of an earlier `init`.
        own = f"shard {uuid4().hex}"
        copies, part = grid.divide_replicas(degree)
        if degree == replicas:
            self._mesh = DeviceMesh.from_group(part, kind, mesh_dim_names=(own,))
        else:
            ranks = torch.tensor(grid.replica_ranks).view(-1, degree)
            self._mesh = DeviceMesh.from_group([copies, part], kind, ranks, mesh_dim_names=("replicate", own))
        self._place = grid.place.replica % degree

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
                part = self._part_of(whole.detach()).clone()
                shard = nn.Parameter(self._dtensor(part, whole), requires_grad=whole.requires_grad)
                stays_half(shard, whole)
                self._known[name] = Exchanged(whole, shard, type(whole), whole.stride())

    def _gather(self) -> None:
        for name, one in self._known.items():
            hooks = (one.part._backward_hooks, one.part._post_accumulate_grad_hooks)  # type: ignore[attr-defined]
            if any(hooks):
                raise PipelineError(
                    f"{name!r} has a gradient hook, and is sharded: torch makes its gradient elsewhere",
                    hint="register hooks before the first step, or change the gradient after the step",
                )
        for names in self.bunches(self._known):
            self._gather_bunch(names)

    def _gather_bunch(self, names: Sequence[str]) -> None:
        """Whole values of parameters of one type."""
        known = [self._known[name] for name in names]
        with torch.no_grad(), torch.inference_mode(False):
            parts = [self._padded(local(one.part.detach()), one.part) for one in known]
            mine = torch.cat(parts).view(torch.uint8)  # gloo does not know every type
            flat = torch.empty(self._degree * mine.numel(), dtype=torch.uint8, device=mine.device)
            all_gather(flat, mine, group=self._grid.parts_group)
            table = flat.view(parts[0].dtype).view(self._degree, -1)
            columns = table.split([len(part) for part in parts], dim=1)
            for one, column in zip(known, columns, strict=True):
                shard = one.part
                value = torch.empty_strided(shard.shape, one.stride, dtype=shard.dtype, device=shard.device)
                value.copy_(column.reshape(-1)[: shard.numel()].view(shard.shape))
                self._revive(one, value)

    # Gradients -------------------------------------------------------------------------------------------------------

    def reduce(self, parameters: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor]) -> Reduced:
        """Begins to sum gradients of parameters of one type over the replicas; of the sum this rank gets its part."""
        rows = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            length = self._length(parameter)
            if not parameter.dim():
                rows.append(gradient.reshape(1, 1).expand(self._degree, 1))
                continue
            flat = gradient.reshape(-1)
            missing = self._degree * length - flat.numel()
            rows.append((torch.cat([flat, flat.new_zeros(missing)]) if missing else flat).view(self._degree, length))
        table = torch.cat(rows, dim=1) if len(rows) > 1 else rows[0].contiguous()
        mine = torch.empty_like(table[0])
        work = reduce_scatter(mine, table.view(-1), group=self._grid.parts_group, async_op=True)
        return Reduced(mine, table, [row.shape[1] for row in rows], work, self._grid.copies_group)

    def put(self, name: str, part: torch.Tensor) -> None:
        """Adds this rank's part of a gradient, padded, to that of earlier steps."""
        shard = self._known[name].part
        own = local(shard.detach())
        gradient = self._dtensor(part[: own.numel()].view(own.shape).clone(), shard)
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

    def _dtensor(self, part: torch.Tensor, parameter: torch.Tensor) -> DTensor:
        where: Any = Shard(0) if parameter.dim() else Replicate()
        placements = [where] if self._mesh.ndim == 1 else [Replicate(), where]
        stride = torch.empty(parameter.shape, device="meta").stride()
        return DTensor.from_local(
            part, self._mesh, placements, run_check=False, shape=torch.Size(parameter.shape), stride=stride
        )

    def bunches(self, names: Iterable[str]) -> Iterator[list[str]]:
        """Names of parameters of one type, so many at once that their memory beside the parameters is small."""
        bunch: list[str] = []
        size, dtype = 0, None
        for name in names:
            shard = self._known[name].part
            if bunch and (size > GATHERED_BYTES or shard.dtype != dtype):
                yield bunch
                bunch, size = [], 0
            bunch.append(name)
            dtype, size = shard.dtype, size + shard.numel() * shard.element_size()
        if bunch:
            yield bunch


class Reduced:
    """A sum of gradients that is under way.

    Args:
        mine: where this rank's parts come to lie.
        table: what is sent.
        lengths: of the parts.
        copies: ranks that hold the same parts.
    """

    def __init__(
        self, mine: torch.Tensor, table: torch.Tensor, lengths: list[int], work: Any, copies: dist.ProcessGroup | None
    ) -> None:
        self._mine, self._table, self._lengths, self._work, self._copies = mine, table, lengths, work, copies

    def parts(self) -> tuple[torch.Tensor, ...]:
        """This rank's parts of the sums, when they are there. Collective where parts are replicated."""
        self._work.wait()
        del self._table
        if self._copies is not None:
            dist.all_reduce(self._mine, group=self._copies)
        return self._mine.split(self._lengths)
