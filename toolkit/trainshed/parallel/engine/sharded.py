"""Steps of a model without stages whose parameters are sharded over all ranks, block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from ..delayed.tape import Tape
from ..errors import NotServed, PipelineError
from ..halves import half_type
from ..plan.plan_file import Plan
from ..record.subject import Backward
from .absent import IN_SHARDS, Absent
from .batch import Microbatch, Ran, parts_of
from .block_shards import BlockShards, refuse_hooks, run_by_all
from .checking import same_everywhere
from .holding import Holding
from .losses import Losses, called
from .placement import broadcast_buffers, broadcast_state
from .suitable import check_values
from .waiting import Waiting


class ShardedEngine:
    """Takes the place of `steps.Engine`.

    Args:
        holding: of the user's model.
        attach: tells the model that the user sees where its `backward` goes.
        loss_scale: gives the factor of the loss.
        on_shards: takes `id` -> name of the parameters before, and name -> parameter after they were sharded.
        average: whether to divide each microbatch's loss by their number.
        buffers: whether replicas take the buffers of replica 0 before each training step.
        tape: tells the values of parameters that the model was built without.

    Raises:
        PipelineError: the degree does not divide the number of ranks.
    """

    def __init__(
        self,
        holding: Holding,
        attach: Callable[[Backward | None], None],
        *,
        loss_scale: Callable[[], float],
        on_shards: Callable[[Mapping[int, str], Mapping[str, nn.Parameter]], None],
        average: bool,
        buffers: bool,
        tape: Tape | None = None,
    ) -> None:
        self.holding = holding
        self.grid = grid = holding.grid
        self.root = holding.root
        self.plan: Plan | None = None
        self._attach = attach
        self._loss_scale = loss_scale
        self._on_shards = on_shards
        self._average = average
        self._buffers = buffers
        self._shards: BlockShards | None = None
        self._absent = Absent()
        self._waiting = holding.waiting = Waiting(holding.root, tape, self._absent, grid.device)
        degree = grid.settings.sharded_data_parallel_degree
        if grid.world % degree:
            raise PipelineError(f"sharded_data_parallel_degree = {degree} does not divide {grid.world} ranks")

    def run(
        self,
        function: Callable[..., Any],
        microbatches: list[Microbatch],
        rows: Callable[[Microbatch], int | None] | None = None,
    ) -> Ran:
        """What `function` returned for each microbatch. Collective.

        Args:
            rows: tells how many rows a microbatch has, by which its loss counts.
        """
        same_everywhere(self.grid, self._trained(), "which parameters are trained")
        if self._shards is None:
            self._shards = self._shard(function, microbatches[0])
        shards = self._shards
        refuse_hooks(self.root)
        shards.begin()
        without = [parameter for parameter in self.root.parameters() if parameter.grad is None]
        losses = Losses()
        scale = (1 / len(microbatches) if self._average else 1.0) * self._loss_scale()
        if self._buffers and self.root.training:
            broadcast_buffers(self.root, self.grid)
        results = []
        parts = parts_of(microbatches, rows)
        for part, microbatch in zip(parts, microbatches, strict=True):
            results.append(called(function, microbatch, losses, self._attach))
            shards.compare(losses.any)
            total = losses.total()
            if total is not None:
                (total * (scale * part if self._average else scale)).backward()
            del total
        shards.close()
        for parameter, used in zip(without, shards.used(without), strict=True):
            if not used:  # the zeros of the sum go
                parameter.grad = None
        return Ran(results, parts)

    def _kinds(self) -> MixedPrecisionPolicy:
        """Types of what is gathered and summed; shards keep theirs.

        Raises:
            NotServed: a module has statistics of float32, which go together with parameters of float32 alone.
        """
        half = half_type(self.grid.settings)
        if half is None:
            return MixedPrecisionPolicy()
        for name, module in self.root.named_modules():
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.affine and module.track_running_stats:
                raise NotServed(
                    f"master_weights without stages does not serve {type(module).__name__} ({name!r}) in sharded models",
                    hint="leave out master_weights, or use group norms",
                )
        return MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)

    def _trained(self) -> bytes:
        return bytes(parameter.requires_grad for parameter in self.root.parameters())

    def _shard(self, function: Callable[..., Any], microbatch: Microbatch) -> BlockShards:
        check_values(self.root)
        names, waiting = self.holding.names, self._waiting.names
        self._waiting.agree(self.grid)
        if waiting:
            self._absent.give_up(self.root, {}, self.grid.device)
        else:
            self.root.to(self.grid.device)
        broadcast_state(self.root, self.grid, waiting)
        with self._absent.as_zeros():
            ran = run_by_all(self.root, self.grid, self._attach, function, [microbatch])
        self._stand_in(waiting)
        world, degree = self.grid.world, self.grid.settings.sharded_data_parallel_degree
        kind = self.grid.device.type
        if world == degree:
            mesh = init_device_mesh(kind, (degree,), mesh_dim_names=("shard",))
        else:
            mesh = init_device_mesh(kind, (world // degree, degree), mesh_dim_names=("replicate", "shard"))
        shards = BlockShards(self.root, self.grid, mesh, self._kinds(), ran)
        shards.fill(self._waiting.values(list(waiting), self.grid.device))
        self._on_shards(names, dict(self.root.named_parameters()))
        self.holding.settle()
        return shards

    def _stand_in(self, waiting: frozenset[str]) -> None:
        """Parameters without values go out of the model; each has one of its shape on the meta device in its place."""
        if not waiting:
            return
        with torch._C.DisableTorchFunctionSubclass():
            refuse_hooks(self.root)
            away = {id(one): one for name, one in self.root.named_parameters() if name in waiting}
            metas = {
                key: nn.Parameter(torch.empty(one.shape, dtype=one.dtype, device="meta"), requires_grad=one.requires_grad)
                for key, one in away.items()
            }
        for module in self.root.modules():
            for name, parameter in module._parameters.items():
                if id(parameter) in metas:
                    module._parameters[name] = metas[id(parameter)]
        for one in away.values():
            self._absent.find(one, IN_SHARDS)
