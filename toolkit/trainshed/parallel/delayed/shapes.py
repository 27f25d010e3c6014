"""Runs a forward for its shapes: what is made from parameters is not computed, and takes no memory.

The results of operations on parameters, and of operations on these, get addresses and no memory (arena), and read as zeros.
All else (masks, positions, indices) is computed as ever, so that what a forward decides by it goes the way that it would go.
That the meta device cannot: there nothing has a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..ground.schemas import schema_of
from ..ground.torch_private import TorchDispatchMode
from ..ground.tree import tensors
from .arena import Arena
from .schemas import results_on_meta, written


class ShapesOnly(TorchDispatchMode):
    """Within it nothing is computed that is made from `parameters`.

    Args:
        parameters: CPU tensors whose values nobody asks for.

    Attributes:
        asked: operations that were done with zeros, for their results are no tensors or have shapes by values.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.asked: set[str] = set()
        self._arena = Arena()
        self._known = {one.untyped_storage().data_ptr() for one in parameters if one.numel()}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors((args, kwargs))
        if func.is_view or not any(map(self._stands, inputs)):
            return func(*args, **kwargs)
        writes = written(func, args, kwargs)
        if writes:
            if not all(map(self._stands, writes)):
                return func(*args, **kwargs)
            return args[0] if len(schema_of(func).returns) == 1 else None
        results = results_on_meta(func, args, kwargs)
        if results is None:
            self.asked.add(schema_of(func).name.split("::")[-1].lstrip("_"))
            return func(*args, **kwargs)
        made = [self._arena.tensor(one.size(), one.stride(), one.dtype) for one in results]
        self._known |= {one.untyped_storage().data_ptr() for one in made}
        return made[0] if len(schema_of(func).returns) == 1 else tuple(made)

    def _stands(self, tensor: torch.Tensor) -> bool:
        return (
            tensor.device.type == "cpu"
            and tensor.layout is torch.strided
            and tensor.untyped_storage().data_ptr() in self._known
        )
