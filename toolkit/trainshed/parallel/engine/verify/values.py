"""The parameters of the undivided model, on the first rank of a pipeline, for as long as a step is verified.

What other ranks hold comes from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from ..checking import gathered
from ..holding import Holding
from ..object_collectives import BUFFERS
from ..remote_parameters import AbsentParameter
from .tensor_digest import Sketch, sketch


class Values(Protocol):
    """The values of all parameters, for a forward and a backward."""

    def there(self) -> Any:
        """Within this context the model can run."""

    def before(self, unit: str, native: Callable[..., Any]) -> Callable[..., Any]:
        """Stands for a unit's call."""

    def sketches(self) -> dict[str, Sketch]:
        """Of the parameters that have been there, as they were at the start."""

    def gradients(self) -> dict[str, Sketch]:
        """Of those that have a gradient; within the context."""


class WholeParameters:
    """All parameters at once.

    Args:
        values: where those in the model are not here.
    """

    def __init__(self, root: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
        self._root, self._values = root, values
        self._sketches: dict[str, Sketch] = {}

    @contextmanager
    def there(self) -> Iterator[None]:
        """Within this context parameters are what was given, also those of other ranks."""
        kept: list[tuple[Any, type, torch.Tensor]] = []
        try:
            with torch.inference_mode(False):
                for name, parameter in self._root.named_parameters():
                    if name not in self._values:
                        continue
                    kind: type = type(parameter)
                    if kind is AbsentParameter:
                        parameter.__class__ = nn.Parameter
                    kept.append((parameter, kind, parameter.data))
                    parameter.data = self._values[name]
            self._sketches = {name: sketch(parameter) for name, parameter in self._root.named_parameters()}
            yield
        finally:
            with torch.inference_mode(False):
                for parameter, kind, data in kept:
                    parameter.data = data
                    parameter.__class__ = kind

    def before(self, _unit: str, native: Callable[..., Any]) -> Callable[..., Any]:
        """The call itself."""
        return native

    def sketches(self) -> dict[str, Sketch]:
        """Of all parameters, as they were at the start."""
        return self._sketches

    def gradients(self) -> dict[str, Sketch]:
        """As they have added up."""
        return {name: sketch(p.grad) for name, p in self._root.named_parameters() if p.grad is not None}


def fetch_parameters(holding: Holding) -> dict[str, torch.Tensor]:
    """Name -> value of the parameters that the first rank of a pipeline does not hold, there; nothing on the others.
    Collective over the pipeline."""
    placement = holding.placement
    found: dict[str, torch.Tensor] = {}
    if placement is None:
        return {}
    every = dict(holding.root.named_parameters())
    with torch.inference_mode(False):
        for name, ranks in placement.holders.items():
            if 0 not in ranks:
                like = every[name]
                found |= _fetch(holding, name, ranks[0], tuple(like.shape), like.dtype, every)
    return found


def fetch_buffers(holding: Holding) -> dict[str, torch.Tensor]:
    """Name -> value of the buffers that other ranks of the pipeline change, on its first rank; nothing on the others.
    Collective over the pipeline."""
    grid, owners = holding.grid, holding.buffer_homes()
    here = {name: buffer for name, buffer in holding.root.named_buffers() if not buffer.is_meta}
    mine = {name: (tuple(b.shape), b.dtype) for name, b in here.items() if owners.get(name) == grid.place.pipeline}
    facts = gathered(grid, BUFFERS, mine)
    found: dict[str, torch.Tensor] = {}
    with torch.inference_mode(False):
        for owner, known in enumerate(facts):
            for name, (shape, dtype) in known.items() if owner else ():
                found |= _fetch(holding, name, owner, shape, dtype, here)
    return found


def _fetch(
    holding: Holding, name: str, owner: int, shape: tuple[int, ...], dtype: torch.dtype, there: dict[str, Any]
) -> dict[str, torch.Tensor]:
    grid = holding.grid
    first, last = grid.pipeline_ranks[0], grid.pipeline_ranks[owner]
    if grid.rank == last:
        dist.send(there[name].detach().contiguous(), first, group=grid.pipeline_group)
    if grid.rank != first:
        return {}
    value = torch.empty(shape, dtype=dtype, device=grid.device)
    dist.recv(value, last, group=grid.pipeline_group)
    return {name: value}
