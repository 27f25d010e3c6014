"""Splits a step's inputs into microbatches, and holds what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from .ground.errors import PipelineError
from .ground.tree import leaves, map_leaves


def split(value: Any, parts: int, axis: int, where: str) -> list[Any]:
    """`value` as `parts` microbatches: each tensor in it is cut along `axis`, anything else is repeated. Where `parts`
    does not divide the length, the first microbatches have one row more than the others.

    An object with `smp_slice(parts, number, axis)` splits itself, also one that is a list (of images of several sizes).

    Raises:
        PipelineError: a tensor has fewer rows than there are microbatches, because another one has more.
    """

    def piece(leaf: Any, number: int) -> Any:
        if hasattr(leaf, "smp_slice"):
            return leaf.smp_slice(parts, number, axis)
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, nn.Parameter) or leaf.dim() == 0:
            return leaf
        if not leaf.numel() and axis >= leaf.dim():
            return leaf  # of a rank that reads no data
        length = leaf.shape[axis]
        if length < parts and leaf.numel():
            raise PipelineError(
                f"{where}: {length} rows cannot be split into {parts} microbatches",
                hint="name the argument in non_split_inputs if it is no batch, or its axis in input_split_axes; a list with "
                "an entry for each row (images of several sizes) needs a class whose smp_slice divides it",
            )
        rows, more = divmod(length, parts)
        return leaf.narrow(axis, number * rows + min(number, more), rows + (number < more))

    whole = _dividing_themselves(value)
    return [map_leaves(partial(piece, number=number), value, stops=whole) for number in range(parts)]


def _dividing_themselves(value: Any) -> set[int]:
    """Ids of the containers in `value` that split themselves."""
    if hasattr(value, "smp_slice"):
        return {id(value)}
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return {found for one in inner for found in _dividing_themselves(one)}


def rows(value: Any, axis: int) -> int | None:
    """How many rows an argument of a step has, which is split along `axis`; None if there is no tensor to split. A list that
    splits itself has a row for each entry."""
    if hasattr(value, "smp_slice"):
        return len(value) if isinstance(value, (list, tuple)) else None
    for leaf in leaves(value):
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter) and axis < leaf.dim():
            return leaf.shape[axis]
    return None


class StepOutput:
    """A tensor that a step returned, one for each microbatch.

    Args:
        parts: rows of each microbatch, divided by their mean; 1 each where the number of microbatches divides the batch.

    outputs: the tensors, in the order of the microbatches.
    """

    def __init__(self, outputs: Sequence[torch.Tensor], parts: Sequence[float] = ()) -> None:
        self.outputs = list(outputs)
        self._parts = list(parts) if any(part != 1 for part in parts) else []

    def __len__(self) -> int:
        return len(self.outputs)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.outputs)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.outputs[number]

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"

    def reduce_mean(self) -> torch.Tensor:
        """Mean over the microbatches, shape of one output; each counts by its rows."""
        if not self._parts:
            return torch.stack(self.outputs).mean(0)
        return torch.stack([output * part for output, part in zip(self.outputs, self._parts, strict=True)]).mean(0)

    def reduce_sum(self) -> torch.Tensor:
        """Sum over the microbatches, shape of one output."""
        return torch.stack(self.outputs).sum(0)

    def concat(self, dim: int = 0) -> torch.Tensor:
        """The whole batch again, joined along `dim`; scalars become a vector."""
        outputs = [output.reshape(1) if output.dim() == 0 else output for output in self.outputs]
        return torch.cat(outputs, dim)

    def stack(self, dim: int = 0) -> torch.Tensor:
        """Outputs along a new axis."""
        return torch.stack(self.outputs, dim)

    def detach(self) -> StepOutput:
        """Without gradients."""
        return self.map(lambda tensor: tensor.detach())

    def cpu(self) -> StepOutput:
        """On the CPU."""
        return self.map(lambda tensor: tensor.cpu())

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> StepOutput:
        """`function` on each output."""
        return StepOutput([function(output) for output in self.outputs], self._parts)


def join(results: list[Any], parts: Sequence[float] = ()) -> Any:
    """Results of all microbatches in the structure of one: tensors become `StepOutput`, anything else a list.

    Args:
        parts: see `StepOutput`.
    """
    first = results[0]
    if isinstance(first, torch.Tensor):
        return StepOutput(results, parts)
    if isinstance(first, (tuple, list)) and all(type(one) is type(first) and len(one) == len(first) for one in results):
        items = [join([one[index] for one in results], parts) for index in range(len(first))]
        if hasattr(first, "_fields"):
            return type(first)(*items)
        return tuple(items) if isinstance(first, tuple) else items
    if isinstance(first, Mapping) and all(isinstance(one, Mapping) and list(one) == list(first) for one in results):
        joined = {key: join([one[key] for one in results], parts) for key in first}
        return joined if type(first) is dict else _like(first, joined)
    return results


def _like(example: Any, values: dict[str, Any]) -> Any:
    try:
        return type(example)(**values)
    except TypeError:
        return values
