"""Parameters of which each rank has a part, and those that were whole before."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ...ground.errors import PipelineError
from ...ground.shards import like, local
from ...ground.torch_private import as_plain
from ...ground.torch_version import TORCH
from ...ground.tree import map_leaves


class ReplacedParameter(nn.Parameter):
    """A parameter that was whole once. The model has another one in its place; whoever still holds this one learns that."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Refused."""
        raise PipelineError(
            "this parameter was divided among ranks by the first step, and is not in the model any more",
            hint="take model.parameters() again after the first step; PipelineOptimizer does so for an optimizer",
        )

    def __repr__(self, **_unused: Any) -> str:  # type: ignore[override]
        return "ReplacedParameter()"


class PartParameter(DTensor):
    """A parameter of which each rank has a part. What is assigned to its `data` counts, which torch's DTensor leaves out
    without a word."""

    __slots__ = ()

    if TORCH < (2, 10):  # views have to be of the same class there

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
            """As later versions of torch do it: computes with plain DTensors."""

            def plain(one: Any) -> Any:
                return as_plain(one) if type(one) is cls else one

            return func(*map_leaves(plain, args), **map_leaves(plain, kwargs or {}))

    @property
    def data(self) -> torch.Tensor:
        """The part without its gradient; what is assigned is a tensor of the same shape and type, divided or whole.

        Raises:
            PipelineError: it is another tensor.
        """
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        value = like(value, self)
        same = isinstance(value, DTensor) and value.placements == self.placements
        if not same or value.shape != self.shape or value.dtype != self.dtype:
            raise PipelineError(
                "what is assigned to the data of a divided parameter has another shape, type or placement",
                hint="change the model before the first step, or assign a tensor of the parameter's shape and type",
            )
        with torch.no_grad():
            local(self).copy_(local(value))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A parameter with the same part."""
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), requires_grad=self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied
