"""The mesh of sharded parameters: over replicas, and where modules are divided, over the ranks of tensor groups before."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ..ground.grid import Grid
from ..ground.shards import TENSOR, tensor_axis


def let_go(mesh: DeviceMesh) -> None:
    """After a step that failed: torch keeps the groups of a mesh beside their names, and so the connections that others wait
    at."""
    around = [one for one in vars(mesh).values() if isinstance(one, DeviceMesh)]
    for held in [held for one in (mesh, *around) for held in vars(one).values() if isinstance(held, dict)]:
        if any(isinstance(one, dist.ProcessGroup) for one in held.values()):
            held.clear()


class ShardMesh:
    """A mesh whose axes are copies of shards (if there are any), the ranks of a tensor group (if there is one), and shards.

    A parameter is cut for the tensor group first, and what a rank has of it then along one dimension, mostly the first.

    Raises:
        PipelineError: the degree does not divide the number of ranks that hold the same.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.degree = degree = grid.settings.sharded_data_parallel_degree
        copies, part = grid.divide_replicas(degree)
        self.copies = len(grid.alike_ranks) // degree
        self.place = grid.alike_ranks.index(grid.rank) % degree
        self.mesh = self._meshed(copies, part, last="shard")

    @cached_property
    def for_blocks(self) -> DeviceMesh:
        """Of the replicas, as torch's FSDP takes one. It ends with a step that fails."""
        names = self._of_steps.mesh_dim_names or ()
        return self._of_steps if self._grid.tensor is None else self._of_steps[names[:-1]]

    @cached_property
    def for_parts(self) -> DeviceMesh:
        """Of the tensor group, there is one. It ends with a step that fails."""
        names = self._of_steps.mesh_dim_names or ()
        return self._of_steps[names[-1]]

    @cached_property
    def _of_steps(self) -> DeviceMesh:
        grid = self._grid
        part = grid.parts_group if grid.parts_group is not None else grid.alike_group
        return self._meshed(grid.copies_group, part, last="shard" if grid.tensor is None else "tensor")

    def let_go(self) -> None:
        """After a step that failed: no connection is kept here."""
        for mesh in (self.mesh, self._of_steps):
            let_go(mesh)

    def dtensor(self, part: torch.Tensor, like: torch.Tensor, axis: int = 0) -> DTensor:
        """This rank's part of a parameter, as a DTensor.

        Args:
            like: the parameter, whole or divided among the ranks of the tensor group; or one of `dtensor`.
            axis: along which shards are cut.
        """
        placements: list[Placement] = [Shard(axis) if like.dim() else Replicate()]
        if self._grid.tensor is not None:
            divided = tensor_axis(like)
            placements.insert(0, Replicate() if divided is None else Shard(divided))
        if self.copies > 1:
            placements.insert(0, Replicate())
        stride = torch.empty(like.shape, device="meta").stride()
        return DTensor.from_local(part, self.mesh, placements, run_check=False, shape=torch.Size(like.shape), stride=stride)

    def _meshed(self, copies: Any, part: Any, *, last: str) -> DeviceMesh:
        grid, mine = self._grid, self._grid.place.pipeline
        tensor = grid.tensor.group if grid.tensor is not None else None
        twins = [ranks for ranks in grid.holders() if grid.places[ranks[0]].pipeline == mine]
        ranks = torch.tensor(twins).T.reshape(self.copies, self.degree, len(twins))
        axes = {"replicate": (0, copies), "shard": (1, part), "tensor": (2, tensor)}
        absent = {name for name, there in (("replicate", self.copies > 1), ("tensor", tensor is not None)) if not there}
        order = sorted(axes.keys() - absent, key=lambda name: (name == last, name != "replicate"))
        ranks = ranks.permute([*(axes[name][0] for name in (*sorted(absent), *order))])
        ranks = ranks.reshape(ranks.shape[len(absent) :])
        # torch keeps what it finds out about a mesh for all that are equal: also for one with other groups.
        own = uuid4().hex
        names = tuple(f"{TENSOR if name == 'tensor' else name + ' '}{last} {own}" for name in order)
        groups = [axes[name][1] for name in order]
        if len(groups) == 1:
            return DeviceMesh.from_group(groups[0], grid.device.type, mesh_dim_names=names)
        return DeviceMesh.from_group(groups, grid.device.type, ranks, mesh_dim_names=names)
