"""How the arguments of a block are cut along the sequence: what their shapes allow, in the order of likelihood."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import torch
from torch import nn

from .slices import Slices

_TRIALS = 24  # ways to cut the arguments of a call that are tried


@dataclass(frozen=True)
class Rule:
    """How a call is divided.

    hidden: number of the argument that is the hidden state, among all leaves.
    axis: its axis that is the sequence.
    cuts: for each leaf of the arguments, the axis along which it is cut; None for what is given whole.
    joins: for each leaf of the result, the axis along which the parts are joined; None for what all ranks have.
    sites: for each call of attention, whether its keys were gathered.
    """

    hidden: int
    axis: int
    cuts: tuple[int | None, ...]
    joins: tuple[int | None, ...] = ()
    sites: tuple[bool, ...] = ()


def is_hidden(leaf: Any) -> bool:
    """Returns whether an argument can be the hidden state of a block."""
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.ndim in (2, 3)


def signature(module: nn.Module, given: Sequence[Any], hidden: torch.Tensor) -> Any:
    """The signature of a call of a block: calls with one signature are divided by one rule.

    Lengths are in it as they relate to those of the hidden state, and, since a block may do something else with a long
    sequence, by their order of magnitude.
    """
    sizes = list(hidden.shape)

    def related(size: int) -> int:
        return sizes.index(size) if size in sizes else -1

    def of(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype, leaf.requires_grad, tuple(map(related, leaf.shape))
        if isinstance(leaf, (bool, str, type(None))):
            return leaf
        if isinstance(leaf, int):
            return "number", related(leaf)
        return type(leaf).__name__

    kind = hidden.device.type
    precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    training = tuple(one.training for one in module.modules())
    return training, precision, tuple(size.bit_length() for size in sizes[:-1]), tuple(map(of, given))


def candidates(given: Sequence[Any], hidden: int, ranks: int, first: Sequence[Rule]) -> Iterator[Rule]:
    """Ways to cut a call, without what is known of the result.

    Args:
        given: leaves of the arguments.
        hidden: which of them is the hidden state.
        first: those of other calls, which are tried before others if they fit.
    """
    state = given[hidden]
    axes = [1, 0] if state.ndim == 3 else [0]
    axes = [axis for axis in axes if Slices(state.size(axis), ranks).fits]
    known = [one for one in first if one.axis in axes and _fits(one, given, hidden)]
    found = [Rule(hidden, one.axis, one.cuts) for one in known]
    for axis in axes:
        options = [[axis] if at == hidden else _options(leaf, state.size(axis), axis) for at, leaf in enumerate(given)]
        found += [Rule(hidden, axis, cuts) for cuts in islice(product(*options), _TRIALS)]
    return iter(dict.fromkeys(found))


def _fits(rule: Rule, given: Sequence[Any], hidden: int) -> bool:
    if rule.hidden != hidden or len(rule.cuts) != len(given):
        return False
    length = given[hidden].size(rule.axis)
    return all(
        cut is None or (isinstance(leaf, torch.Tensor) and leaf.ndim > cut and leaf.size(cut) == length)
        for cut, leaf in zip(rule.cuts, given, strict=True)
    )


def _options(leaf: Any, length: int, axis: int) -> list[int | None]:
    if not isinstance(leaf, torch.Tensor):
        return [None]
    axes = [number for number, size in enumerate(leaf.shape) if size == length]
    last = leaf.ndim - 1
    if not axes:
        return [None]
    if last - 1 in axes and last in axes:  # a mask: rows are queries
        return [last - 1, None]
    if axes == [last] and (leaf.ndim >= 3 or leaf.dtype == torch.bool):  # a mask of keys
        return [None, last]
    axes.sort(key=lambda number: number != axis)
    return [*axes, None]
