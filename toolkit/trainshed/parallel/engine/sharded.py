"""Steps of a model without stages whose parameters are sharded over ranks: FSDP2, or HSDP where shards are replicated.

Each block of a list of blocks is a unit of its own, which is gathered when it runs; all other parameters are one more.
Gradients are averaged by torch, after each microbatch, so that nobody ever holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ..errors import PipelineError
from ..grid import Grid
from ..optimizer import loss_scale
from ..plan.plan_file import Plan
from ..record.subject import Backward
from ..session import session
from ..tree import map_leaves
from .batch import Microbatch
from .placement import Placement, broadcast_buffers, broadcast_state


class ShardedEngine:
    """Takes the place of `engine.Engine`.

    Args:
        root: the user's model.
        attach: tells the model that the user sees where its `backward` goes.
    """

    def __init__(
        self, grid: Grid, root: nn.Module, attach: Callable[[Backward | None], None], *, average: bool, buffers: bool
    ) -> None:
        self.grid, self.root, self.attach, self.average, self.buffers = grid, root, attach, average, buffers
        self.plan: Plan | None = None
        self.placement: Placement | None = None
        self.partitioned = False
        self.on_partition: list[Callable[[], None]] = []
        degree = grid.settings.sharded_data_parallel_degree
        if grid.world % degree:
            raise PipelineError(f"sharded_data_parallel_degree = {degree} does not divide {grid.world} ranks")

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by name, of each this rank's part."""
        return dict(self.root.named_parameters())

    def run(self, function: Callable[..., Any], microbatches: list[Microbatch]) -> list[Any]:
        """What `function` returned for each microbatch. Collective."""
        if not self.partitioned:
            self._shard()
        losses = _Losses()
        scale = (1 / len(microbatches) if self.average else 1.0) * loss_scale()
        if self.buffers and self.root.training:
            broadcast_buffers(self.root, self.grid)
        results = []
        for args, kwargs in microbatches:
            self.attach(losses)
            try:
                result = function(*args, **kwargs)
            finally:
                self.attach(None)
            results.append(map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, result))
            del result
            losses.run(scale)
        return results

    def _shard(self) -> None:
        names = {id(parameter): name for name, parameter in self.root.named_parameters()}
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
        self.partitioned = True
        if session.optimizer is not None:
            _replace(session.optimizer.optimizer, names, self.parameters)
        for hook in self.on_partition:
            hook()


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


def _replace(optimizer: torch.optim.Optimizer, names: dict[int, str], shards: dict[str, nn.Parameter]) -> None:
    """The optimizer goes on with this rank's parts of its parameters."""
    for group in optimizer.param_groups:
        for index, old in enumerate(group["params"]):
            if id(old) in names:
                new = shards[names[id(old)]]
                group["params"][index] = new
                if old in optimizer.state:
                    optimizer.state[new] = optimizer.state.pop(old)
