"""Parameters of a model without stages whose ranks run batches together, sharded over the ranks that have the same of it.

torch's FSDP2 shards what a rank has of each parameter along one dimension, after a tensor group has divided modules
if there is one. torch would write that as one axis that is cut in strides, of sizes that divide. Here the axis of the tensor
group comes first, so parameters are plain nested chunks, of any sizes, and all lie on one mesh: also those that the tensor
group has whole.

Tensors in parts (`part`) go from block to block. They take no part in autograd themselves, so torch, whose hooks on what
comes into a block and leaves it begin and end the block's backward, is given what they hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard

from ...ground.grid import Grid
from ...ground.shards import tensor_axis
from ...ground.torch_private import parameters_in
from ...ground.tree import leaves, map_leaves
from ..block_shards import BlockShards, Hook, places_of
from ..shard_mesh import ShardMesh
from .part_parameters import PartParameter, ReplacedParameter
from .sharded_tensor import Alias, Part


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
            for name, parameter in parameters_in(module).items()
            if parameter is not None
        }
        self._where = where
        self._gathered: set[int] = set()
        super().__init__(root, grid, where.for_blocks, kinds, ran)
        places = places_of(root)
        for one in self.each:
            _lay(one, where, places[id(one.sharded_param)], attributes)
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
                for name, parameter in parameters_in(module).items()
                if parameter is not None
            ]
            try:
                for module, name, parameter in places:
                    parameters_in(module)[name] = made[id(parameter)]
                yield
            finally:
                for module, name, parameter in places:
                    parameters_in(module)[name] = parameter

    def gathers(self, tensor: torch.Tensor) -> bool:
        """Returns whether a block's modules read a tensor in the place of a parameter that the tensor group has whole."""
        if type(tensor) is not nn.Parameter:
            return False
        if id(tensor) not in self._gathered:  # made when its block runs first, and kept
            self._gathered = {id(getattr(one, "unsharded_param", None)) for one in self.each}
        return id(tensor) in self._gathered

    def _entering(self, native: Hook, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        enter = partial(super()._entering, native, module)
        every = [*args, *kwargs.values()]
        mine = [any(isinstance(leaf, Part) for leaf in leaves(one)) for one in every]
        if self.is_off or not torch.is_grad_enabled() or not any(mine):
            return enter(args, kwargs)
        given = [map_leaves(_held, one) if parted else one for one, parted in zip(every, mine, strict=True)]
        args, kwargs = enter(tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True)))
        entered = [
            _back(before, one) if parted else one
            for before, one, parted in zip(every, [*args, *kwargs.values()], mine, strict=True)
        ]
        return tuple(entered[: len(args)]), dict(zip(kwargs, entered[len(args) :], strict=True))

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        return _held(tensor)

    def _alone(self, leaf: Any) -> Any:
        if not isinstance(leaf, Part) or leaf.whole is not None:
            return super()._alone(_held(leaf))
        own = super()._alone(leaf.own)
        return leaf if own is leaf.own else _with(leaf, own)

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


def _back(before: Any, value: Any) -> Any:
    """The parts of a value in which torch was given what they hold."""
    old = iter(leaves(before))

    def back(leaf: Any) -> Any:
        part = next(old)
        if not isinstance(part, Part) or part.whole is not None:
            return leaf
        return part if leaf is part.own else _with(part, leaf, part.alias)

    return map_leaves(back, value)


def _held(leaf: Any) -> Any:
    if not isinstance(leaf, Part):
        return leaf
    return leaf.own if leaf.whole is None else leaf.whole


def _with(part: Part, own: torch.Tensor, alias: Alias | None = None) -> Part:
    """The same tensor with other memory for this rank's places, or a view of the same."""
    made = Part.of(part.region, own, part.axis, (tuple(part.shape), part.stride()), part.sources, part.twin)
    if alias is not None:
        made.alias = alias
    return made


def _lay(
    one: Any, where: ShardMesh, places: list[tuple[nn.Module, str]], attributes: dict[tuple[int, str], dict[str, Any]]
) -> None:
    """Puts a shard of torch's, whose values stay where they are, onto the mesh of all.

    Args:
        places: of the parameter: modules, and its names there.
        attributes: what the script has put on parameters, by module and name.
    """
    old = one.sharded_param
    with torch.no_grad():
        new: Any = nn.Parameter(where.dtensor(old.to_local(), old, one.fsdp_placement.dim), requires_grad=old.requires_grad)
    new.__class__ = PartParameter
    module, name = places[0]
    new.__dict__.update(attributes[id(module), name])
    one.sharded_param = new  # before the first forward torch looks at what is in the module
    for module, name in places:
        parameters_in(module)[name] = new
