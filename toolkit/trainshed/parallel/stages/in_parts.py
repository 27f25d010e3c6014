"""The parameters of the undivided model in parts, where all of them have no room on one rank.

A unit's parameters are there while it runs. What its operations keep of them for the backward is a note of what it was
(`torch.autograd.graph.saved_tensors_hooks`): the backward fetches the unit's parameters again, and so does a checkpoint that
runs the unit again. Gradients become sketches as soon as they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ..engine.remote_parameters import AbsentParameter
from ..engine.verify.tensor_digest import NOTHING, Sketch, sketch
from ..ground.exchanges import length_of
from ..ground.shards import local
from .stage_holding import StageHolding

_END = -1


class _Kept(NamedTuple):
    """What an operation keeps of a parameter for its backward."""

    unit: str
    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class InParts:
    """The parameters of one unit at a time.

    Args:
        uses: unit -> names of the parameters that it reads; "" for those that are read between units, and stay.
        units: their modules.
        fetch: the value of a parameter that is not here.
    """

    def __init__(
        self,
        root: nn.Module,
        uses: Mapping[str, frozenset[str]],
        units: Mapping[str, nn.Module],
        fetch: Callable[[str], torch.Tensor],
    ) -> None:
        self._parameters = dict(root.named_parameters())
        self._uses, self._units, self._fetch = uses, units, fetch
        self._away: dict[str, Any] = {n: one for n, one in self._parameters.items() if isinstance(one, AbsentParameter)}
        self._nothing: dict[str, torch.Tensor] = {}  # what stands for a parameter that is not there
        self._filled: dict[str, torch.Tensor] = {}
        self._open: list[str] = [""]  # units that run, and must stay
        self._unit_of: dict[int, tuple[str, str]] = {}  # address of the memory -> unit and parameter
        self._sketches: dict[str, Sketch] = {}
        self._gradients: dict[str, Sketch] = {}

    @contextmanager
    def there(self) -> Iterator[None]:
        """Within this context each unit's parameters are there when it runs."""
        hooks: list[Any] = []
        try:
            for name, one in self._away.items():
                one.__class__ = nn.Parameter
                self._nothing[name] = one.data
            for name in self._parameters.keys() - self._away.keys():
                self._sketches[name] = sketch(self._parameters[name])
            self._ensure("")
            for name, one in self._parameters.items():
                if one.requires_grad:
                    hooks.append(one.register_post_accumulate_grad_hook(partial(self._take, name)))
            for unit in self._uses.keys() & self._units.keys():
                for module in self._units[unit].modules():  # a checkpoint may run any of them again
                    hooks.append(module.register_forward_pre_hook(partial(self._again, unit), prepend=True))
            with torch.autograd.graph.saved_tensors_hooks(self._keep, self._back):
                yield
        finally:
            for hook in hooks:
                hook.remove()
            with torch.inference_mode(False):
                for name, nothing in self._nothing.items():
                    self._away[name].data = nothing
                    self._away[name].__class__ = AbsentParameter
            self._filled.clear()

    def before(self, unit: str, native: Callable[..., Any]) -> Callable[..., Any]:
        """The call with the unit's parameters."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._ensure(unit)
            self._open.append(unit)
            try:
                return native(*args, **kwargs)
            finally:
                self._open.pop()

        return run

    def sketches(self) -> dict[str, Sketch]:
        """Of the parameters that have been there, as they were at the start."""
        return self._sketches

    def gradients(self) -> dict[str, Sketch]:
        """As they have arrived."""
        return self._gradients

    def _ensure(self, unit: str) -> None:
        """Fetches a unit's parameters; those of units that do not run go."""
        wanted = self._uses.get(unit, frozenset())
        stay = wanted.union(*(self._uses.get(one, ()) for one in self._open))
        with torch.inference_mode(False), torch.no_grad():
            for name in self._filled.keys() - stay:
                self._parameters[name].data = self._nothing[name]
                self._unit_of.pop(self._filled.pop(name).untyped_storage().data_ptr(), None)
            for name in sorted(wanted & self._away.keys() - self._filled.keys()):
                value = self._filled[name] = self._fetch(name)
                self._parameters[name].data = value
                if value.numel():
                    self._unit_of[value.untyped_storage().data_ptr()] = unit, name
                if name not in self._sketches:
                    self._sketches[name] = sketch(value)

    def _again(self, unit: str, _module: nn.Module, _args: Any) -> None:
        self._ensure(unit)

    def _take(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._gradients[name] = self._gradients.get(name, NOTHING).plus(sketch(parameter.grad))
            parameter.grad = None

    def _keep(self, tensor: torch.Tensor) -> Any:
        if tensor.layout is torch.strided and tensor.numel() and not tensor.is_meta:
            unit, name = self._unit_of.get(tensor.untyped_storage().data_ptr(), ("", ""))
            if name and tensor.dtype == self._filled[name].dtype:
                return _Kept(unit, name, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return tensor.detach()

    def _back(self, kept: Any) -> torch.Tensor:
        if not isinstance(kept, _Kept):
            found: torch.Tensor = kept
            return found
        self._ensure(kept.unit)
        return self._filled[kept.name].as_strided(kept.size, kept.stride, kept.offset)


class Library:
    """Lends parameters to the first rank of those that run one batch, one by one. Collective over these: one asks, the
    others serve until it has ended.

    leads: whether this rank asks.
    """

    def __init__(self, holding: StageHolding) -> None:
        grid = holding.grid
        self._group, self._device, self._ranks = grid.company_group, grid.device, grid.company_ranks
        self._rank, self._places = grid.rank, grid.places
        self.leads = self._rank == self._ranks[0]
        # Where modules are divided: whole ones for whoever asks, who gets them in pieces.
        self._parts = holding.parts
        self._parameters = dict(holding.root.named_parameters())
        self._names = list(self._parameters)
        self._holders = holding.placement.holders if holding.placement is not None else {}

    def fetch(self, name: str) -> torch.Tensor:
        """The value of a parameter, from the ranks that hold it; on the one that asks."""
        place, like = self._holders[name][0], self._parameters[name]
        holders = [rank for rank in self._ranks if self._places[rank].pipeline == place]
        axis = self._parts.axis_of(name) if self._parts is not None else None
        if axis is None:
            return self._piece(name, holders[0], tuple(like.shape))
        holders.sort(key=lambda rank: self._places[rank].tensor)
        value = torch.empty(tuple(like.shape), dtype=like.dtype, device=self._device)
        lengths = [length_of(like.shape[axis], len(holders), number) for number in range(len(holders))]
        for rank, room in zip(holders, value.split(lengths, axis), strict=True):
            if room.numel():
                room.copy_(self._piece(name, rank, tuple(room.shape)))
        return value

    def _piece(self, name: str, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
        """What a rank has of a parameter."""
        like = self._parameters[name]
        if rank == self._rank:
            return local(self._mine(name))
        dist.send(torch.tensor([self._names.index(name)], device=self._device), rank, group=self._group)
        value = torch.empty(shape, dtype=like.dtype, device=self._device)
        dist.recv(value, rank, group=self._group)
        return value

    def _mine(self, name: str) -> torch.Tensor:
        own = self._parameters[name]
        return (own if self._parts is None else self._parts.part(name, own)).detach()

    def serve(self) -> None:
        """On the other ranks."""
        wanted = torch.empty(1, dtype=torch.int64, device=self._device)
        while True:
            dist.recv(wanted, self._ranks[0], group=self._group)
            number = int(wanted)
            if number == _END:
                return
            value = local(self._mine(self._names[number])).contiguous()
            dist.send(value, self._ranks[0], group=self._group)

    def end(self) -> None:
        """On the first rank: the others go on."""
        for rank in self._ranks[1:]:
            dist.send(torch.tensor([_END], device=self._device), rank, group=self._group)
