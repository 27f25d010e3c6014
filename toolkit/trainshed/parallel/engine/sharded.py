"""Steps of a model without stages whose parameters are sharded over ranks: FSDP2, or HSDP where shards are replicated.

Each block of a list of blocks is one unit, which is gathered when it runs; all other parameters are another unit. torch
averages gradients after each microbatch, so that a rank never holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ..errors import PipelineError
from ..plan.plan_file import Plan
from ..record.subject import Backward
from ..tree import map_leaves
from .batch import Microbatch
from .holding import Holding
from .placement import broadcast_buffers, broadcast_state


class ShardedEngine:
    """Takes the place of `steps.Engine`.

    Args:
        holding: of the user's model.
        attach: tells the model that the user sees where its `backward` goes.
        loss_scale: gives the factor of the loss.
        on_shards: takes `id` -> name of the parameters before, and name -> parameter after they were sharded.
        average: whether to divide each microbatch's loss by their number.
        buffers: whether replicas take the buffers of replica 0 before each training step.

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
        degree = grid.settings.sharded_data_parallel_degree
        if grid.world % degree:
            raise PipelineError(f"sharded_data_parallel_degree = {degree} does not divide {grid.world} ranks")

    def run(self, function: Callable[..., Any], microbatches: list[Microbatch]) -> list[Any]:
        """What `function` returned for each microbatch. Collective."""
        if not self.holding.partitioned:
            self._shard()
        losses = _Losses()
        scale = (1 / len(microbatches) if self._average else 1.0) * self._loss_scale()
        if self._buffers and self.root.training:
            broadcast_buffers(self.root, self.grid)
        results = []
        for args, kwargs in microbatches:
            self._attach(losses)
            try:
                result = function(*args, **kwargs)
            finally:
                self._attach(None)
            results.append(map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, result))
            del result
            losses.run(scale)
        return results

    def _shard(self) -> None:
        names = self.holding.names
        self.root.to(self.grid.device)
        broadcast_state(self.root, self.grid)
        world, degree = self.grid.world, self.grid.settings.sharded_data_parallel_degree
        kind = self.grid.device.type
        if world == degree:
            mesh = init_device_mesh(kind, (degree,), mesh_dim_names=("shard",))
        else:
            mesh = init_device_mesh(kind, (world // degree, degree), mesh_dim_names=("replicate", "shard"))
        for block in blocks(self.root):
            fully_shard(block, mesh=mesh)
        fully_shard(self.root, mesh=mesh)
        self._on_shards(names, dict(self.root.named_parameters()))
        self.holding.settle()


class _Losses:
    def __init__(self) -> None:
        self._given: list[torch.Tensor] = []

    def backward(self, losses: list[torch.Tensor]) -> None:
        """`model.backward(...)` in the step function."""
        self._given.extend(losses)

    def run(self, scale: float) -> None:
        """The backward itself, after the step function."""
        given, self._given = self._given, []
        if given:
            (torch.stack([loss.float() for loss in given]).sum() * scale).backward()


def blocks(root: nn.Module) -> list[nn.Module]:
    """The entries of lists and sequences of modules that share no parameter with the rest, outermost lists only."""
    count: dict[int, int] = {}
    for _, parameter in root.named_parameters(remove_duplicate=False):
        count[id(parameter)] = count.get(id(parameter), 0) + 1

    def alone(module: nn.Module) -> bool:
        inside: dict[int, int] = {}
        for _, parameter in module.named_parameters(remove_duplicate=False):
            inside[id(parameter)] = inside.get(id(parameter), 0) + 1
        return bool(inside) and all(count[key] == number for key, number in inside.items())

    found: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, (nn.ModuleList, nn.Sequential)):
                found.extend(entry for entry in child if alone(entry))
            else:
                visit(child)

    visit(nn.ModuleList([root]) if isinstance(root, nn.Sequential) else root)
    if isinstance(root, nn.Sequential):
        found = [entry for entry in root if alone(entry)]
    return list(dict.fromkeys(found))
