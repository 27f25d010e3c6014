"""Walks PyTorch's backward graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..ground.torch_private import base_of


def nodes_of(tensors: list[torch.Tensor]) -> set[Any]:
    """The nodes at which the history of `tensors` begins; to be asked before an operation that may change them in place."""
    whole = [one for one in map(base_of, tensors) if one is not None]  # a view is changed through what it is of
    return {tensor.grad_fn for tensor in [*tensors, *whole] if tensor.grad_fn is not None}


def parameters_reached(outputs: Iterable[torch.Tensor], stops: set[Any]) -> set[int]:
    """Ids of the leaf tensors whose gradient a backward from `outputs` would compute, not going beyond `stops`."""
    waiting: list[Any] = []
    found: set[int] = set()
    for tensor in outputs:
        if tensor.grad_fn is not None:
            if tensor.grad_fn not in stops:  # an operation may return what it was given, as `float` of float32
                waiting.append(tensor.grad_fn)
        elif tensor.requires_grad:
            found.add(id(tensor))
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen and following not in stops:
                seen.add(following)
                waiting.append(following)
    return found
