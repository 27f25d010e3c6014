"""Splits a step's inputs into microbatches, and holds what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from .errors import PipelineError
from .tree import map_leaves


def split(value: Any, parts: int, axis: int, where: str) -> list[Any]:
    """`value` as `parts` microbatches: each tensor in it is cut along `axis`, anything else is repeated.

    An object with `smp_slice(parts, number, axis)` splits itself.

    Raises:
        PipelineError: a tensor's length is no multiple of `parts`.
    """

    def piece(leaf: Any, number: int) -> Any:
        if hasattr(leaf, "smp_slice"):
            return leaf.smp_slice(parts, number, axis)
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, nn.Parameter) or leaf.dim() == 0:
            return leaf
        if not leaf.numel() and axis >= leaf.dim():
            return leaf  # of a rank that reads no data
        length = leaf.shape[axis]
        if length % parts:
            raise PipelineError(
                f"{where}: a batch of {length} cannot be split into {parts} microbatches",
                hint="use drop_last=True, another batch size, or name the argument in non_split_inputs",
            )
        return leaf.narrow(axis, number * (length // parts), length // parts)

    return [map_leaves(partial(piece, number=number), value) for number in range(parts)]


class StepOutput:
    """A tensor that a step returned, one for each microbatch.

    outputs: the tensors, in the order of the microbatches.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self.outputs = list(outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.outputs)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.outputs[number]

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"

    def reduce_mean(self) -> torch.Tensor:
        """Mean over the microbatches, shape of one output."""
        return torch.stack(self.outputs).mean(0)

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
        return StepOutput([function(output) for output in self.outputs])


def join(results: list[Any]) -> Any:
    """Results of all microbatches in the structure of one: tensors become `StepOutput`, anything else a list."""
    first = results[0]
    if isinstance(first, torch.Tensor):
        return StepOutput(results)
    if isinstance(first, (tuple, list)) and all(type(one) is type(first) and len(one) == len(first) for one in results):
        items = [join([one[index] for one in results]) for index in range(len(first))]
        if hasattr(first, "_fields"):
            return type(first)(*items)
        return tuple(items) if isinstance(first, tuple) else items
    if isinstance(first, Mapping) and all(isinstance(one, Mapping) and list(one) == list(first) for one in results):
        joined = {key: join([one[key] for one in results]) for key in first}
        return joined if type(first) is dict else _like(first, joined)
    return results


def _like(example: Any, values: dict[str, Any]) -> Any:
    try:
        return type(example)(**values)
    except TypeError:
        return values
