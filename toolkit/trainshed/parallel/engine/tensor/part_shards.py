"""Parameters of a model without stages whose ranks run batches together, sharded over the ranks that have the same of it.

torch's FSDP2 shards what a rank has of each parameter along one dimension, after a tensor group has divided modules
if there is one. torch would write that as one axis that is cut in strides, of sizes that divide. Here the axis of the tensor
group comes first, so parameters are plain nested chunks, of any sizes, and all lie on one mesh: also those that the tensor
group has whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard

from ...grid import Grid
from ...shards import tensor_axis
from ..block_shards import BlockShards
from ..shard_mesh import ShardMesh
from .part_parameters import PartParameter, ReplacedParameter


class PartShards(BlockShards):
    """Shards the parameters of a model, after it was divided if it is.

    Args:
        kinds: types of what is gathered and summed.
        ran: names of modules that run for every microbatch.
    """

    def __init__(self, root: nn.Module, grid: Grid, where: ShardMesh, kinds: MixedPrecisionPolicy, ran: set[str]) -> None:
        before = list(root.parameters())
        attributes = {
            (id(module), name): dict(parameter.__dict__)
            for module in root.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        }
        self._where = where
        super().__init__(root, grid, where.for_blocks, kinds, ran)
        for one in self.each:
            _lay(one, where, attributes)
        for old in before:
            if not isinstance(old, DTensor):
                old.data = torch.empty(0, dtype=old.dtype, device=old.device)
                old.__class__ = ReplacedParameter

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within this context each rank has what the tensor group has given it, whole parameters without one, and no replica
        waits for another one. Collective over the ranks that have the same."""
        with self.off():
            made = {id(one): self._part(one) for one in self._root.parameters()}
            places = [
                (module, name, parameter)
                for module in self._root.modules()
                for name, parameter in module._parameters.items()
                if parameter is not None
            ]
            try:
                for module, name, parameter in places:
                    module._parameters[name] = made[id(parameter)]
                yield
            finally:
                for module, name, parameter in places:
                    module._parameters[name] = parameter

    def _part(self, shard: Any) -> nn.Parameter:
        with torch.no_grad():
            part = shard.detach().redistribute(placements=[*shard.placements[:-1], Replicate()]).to_local()
            axis = tensor_axis(shard)
            if axis is not None:
                mesh = self._where.for_parts
                part = DTensor.from_local(
                    part, mesh, [Shard(axis)], run_check=False, shape=shard.shape, stride=shard.stride()
                )
        return nn.Parameter(part, requires_grad=shard.requires_grad)


def _lay(one: Any, where: ShardMesh, attributes: dict[tuple[int, str], dict[str, Any]]) -> None:
    """Puts a shard of torch's, whose values stay where they are, onto the mesh of all.

    Args:
        attributes: what the script has put on parameters, by module and name.
    """
    old, home = one.sharded_param, one._module_info
    with torch.no_grad():
        new: Any = nn.Parameter(where.dtensor(old.to_local(), old, one.fsdp_placement.dim), requires_grad=old.requires_grad)
    new.__class__ = PartParameter
    new.__dict__.update(attributes[id(home.module), home.param_name])
    one.sharded_param, one._sharding_spec = new, new._spec
    one._setattr_on_modules(new)
