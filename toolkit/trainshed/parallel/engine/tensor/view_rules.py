"""Functions that give the values of a tensor in another form, of tensors that are in parts (`part`): each keeps on a rank
what it had."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .op_call import OpCall, OpStrategy, Rule, is_ordinary

_ALL = slice(None)


def _sizes(given: Sequence[Any]) -> tuple[int, ...] | None:
    """Of `f(2, 3)` or `f((2, 3))`; None for anything else."""
    sizes = tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else tuple(given)
    return sizes if sizes and all(type(one) is int for one in sizes) else None


def _reshaped(call: OpCall) -> OpStrategy | None:
    """`view` and `reshape`: the axis with its neighbours is divided or merged, and stays the outermost of them."""
    first = call.first()
    if first is None or call.kwargs:
        return None
    sizes = _sizes(call.args[1:])
    return None if sizes is None else _into(call, *first, sizes)


def _into(call: OpCall, tensor: Any, axis: int, sizes: tuple[int, ...]) -> OpStrategy | None:
    shape = tuple(tensor.shape)
    if sizes.count(-1) == 1:
        rest = -prod(sizes)
        sizes = tuple(prod(shape) // rest if one == -1 and rest else one for one in sizes)
    if prod(sizes) != prod(shape) or min(sizes) < 1 or min(shape) < 1:
        return None
    before = prod(shape[:axis])
    # The axes of the result before which there is as much as before the axis; the first one that is not 1 has its places.
    place = next((at for at, one in enumerate(sizes) if one > 1 and prod(sizes[:at]) == before), None)
    if place is None or (place > axis and sizes[axis] == 1):  # one head, whose own features are no use in parts
        return None
    inner, other = prod(shape[axis + 1 :]), prod(sizes[place + 1 :])
    if not call.are_alike(shape[axis], inner, sizes[place], other):
        return None
    own = tuple(call.length(one) if at == place else one for at, one in enumerate(sizes))
    func = torch.Tensor.view if call.func is torch.Tensor.view else torch.Tensor.reshape
    return OpStrategy(func, (tensor, sizes), {}, place, own=(own,))


def _flattened(call: OpCall) -> OpStrategy | None:
    first = call.first()
    if first is None:
        return None
    tensor, axis = first
    start, end = (at % tensor.ndim for at in (call.argument(1, "start_dim", 0), call.argument(2, "end_dim", -1)))
    return _into(call, tensor, axis, (*tensor.shape[:start], prod(tensor.shape[start : end + 1]), *tensor.shape[end + 1 :]))


def _unflattened(call: OpCall) -> OpStrategy | None:
    first = call.first()
    sizes = call.argument(2, "sizes")
    if first is None or not isinstance(sizes, (tuple, list)):
        return None
    tensor, axis = first
    at = call.argument(1, "dim") % tensor.ndim
    inner = list(sizes)
    if -1 in inner:
        inner[inner.index(-1)] = tensor.shape[at] // -prod(inner)
    return _into(call, tensor, axis, (*tensor.shape[:at], *inner, *tensor.shape[at + 1 :]))


def _swapped(call: OpCall) -> OpStrategy | None:
    first = call.first()
    if first is None:
        return None
    tensor, axis = first
    one = call.argument(1, "dim0", call.kwargs.get("axis0")) % tensor.ndim
    other = call.argument(2, "dim1", call.kwargs.get("axis1")) % tensor.ndim
    return call.along({one: other, other: one}.get(axis, axis))


def _swapped_last(call: OpCall) -> OpStrategy | None:
    """The attribute `mT`."""
    first = call.first()
    if first is None:
        return None
    last = first[0].ndim - 1
    return call.along({last: last - 1, last - 1: last}.get(first[1], first[1]))


def _permuted(call: OpCall) -> OpStrategy | None:
    first = call.first()
    order = _sizes(call.args[1:])
    if first is None or order is None or call.kwargs:
        return None
    return call.along([one % first[0].ndim for one in order].index(first[1]))


def _unsqueezed(call: OpCall) -> OpStrategy | None:
    first = call.first()
    if first is None:
        return None
    return call.along(first[1] + (call.argument(1, "dim") % (first[0].ndim + 1) <= first[1]))


def _squeezed(call: OpCall) -> OpStrategy | None:
    first, at = call.first(), call.argument(1, "dim")
    if first is None or type(at) is not int:
        return None
    tensor, axis = first
    at %= tensor.ndim
    return None if at == axis else call.along(axis - (at < axis and tensor.shape[at] == 1))


def _expanded(call: OpCall) -> OpStrategy | None:
    first = call.first()
    sizes = _sizes(call.args[1:])
    if first is None or sizes is None or call.kwargs:
        return None
    tensor, axis = first
    place = axis + len(sizes) - tensor.ndim
    if sizes[place] not in (-1, tensor.shape[axis]):
        return None
    own = tuple(-1 if at == place else one for at, one in enumerate(sizes))
    return OpStrategy(call.func, (tensor, sizes), {}, place, own=(own,))


def _taken(call: OpCall) -> OpStrategy | None:
    """`tensor[...]` that takes all along the axis."""
    first = call.first()
    if first is None:
        return None
    tensor, axis = first
    items = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    if not all(one is None or one is Ellipsis or type(one) in (int, slice) for one in items) or items.count(Ellipsis) > 1:
        return None
    named = sum(one is not None and one is not Ellipsis for one in items)
    if Ellipsis not in items:
        items = (*items, Ellipsis)
    at = items.index(Ellipsis)
    full = [*items[:at], *[_ALL] * (tensor.ndim - named), *items[at + 1 :]]
    source = place = 0
    for one in full:
        if one is None:
            place += 1
            continue
        if source == axis:
            size = tensor.shape[axis]
            return call.along(place) if type(one) is slice and one.indices(size) == (0, size, 1) else None
        source, place = source + 1, place + (type(one) is slice)
    return None


def _divided(call: OpCall) -> OpStrategy | None:
    """`split`, `chunk`, `narrow` and sorts along another axis."""
    first = call.first()
    positions = {torch.Tensor.narrow: 1, torch.narrow: 1}
    at = call.argument(positions.get(call.func, 2), "dim", 0)
    if first is None or type(at) is not int or at % first[0].ndim == first[1]:
        return None
    return call.along(first[1])


def _picked(call: OpCall) -> OpStrategy | None:
    """`select` and `unbind`: another axis goes."""
    first, at = call.first(), call.argument(1, "dim", 0)
    if first is None or type(at) is not int or at % first[0].ndim == first[1]:
        return None
    return call.along(first[1] - (at % first[0].ndim < first[1]))


def _joined(call: OpCall) -> OpStrategy | None:
    """`cat` and `stack` along another axis."""
    given, at = call.args[0], call.argument(1, "dim", 0)
    if (
        not {*call.kwargs} <= {"dim"}
        or not isinstance(given, (tuple, list))
        or type(at) is not int
        or len(call.tensors()) != len(given)
    ):
        return None
    stacks = call.func is torch.stack
    kept = [one for one in given if stacks or tuple(one.shape) != (0,)]  # `cat` leaves out empty ones
    axes = {call.axis_of(one) for one in kept} - {None}
    ndim = kept[0].ndim
    if len(axes) != 1 or any(one.ndim != ndim for one in kept):
        return None
    (axis,) = axes
    at %= ndim + stacks
    sizes = {one.shape[axis] for one in kept}
    plain = [one for one in kept if call.axis_of(one) is None]
    if axis is None or len(sizes) != 1 or (at == axis and not stacks) or not all(map(is_ordinary, plain)):
        return None
    cuts = {id(one): axis for one in plain}
    return OpStrategy(call.func, (kept, at), {}, axis + (stacks and at <= axis), cuts)


def _repeated(call: OpCall) -> OpStrategy | None:
    """`repeat_interleave` by a number."""
    first, times, at = call.first(), call.argument(1, "repeats"), call.argument(2, "dim")
    if first is None or type(times) is not int or type(at) is not int:
        return None
    tensor, axis = first
    size = tensor.shape[axis]
    if at % tensor.ndim == axis and not call.are_alike(size, times, size * times, 1):
        return None
    return call.along(axis)


def _both(rule: Rule, *names: str) -> dict[Any, Rule]:
    """For functions of torch and methods of these names."""
    owners = (torch, torch.Tensor)
    return {getattr(owner, name): rule for name in names for owner in owners if hasattr(owner, name)}


VIEWS: dict[Any, Rule] = {
    torch.Tensor.view: _reshaped,
    **_both(_reshaped, "reshape"),
    **_both(_flattened, "flatten"),
    **_both(_unflattened, "unflatten"),
    **_both(_swapped, "transpose", "swapaxes", "swapdims"),
    torch.Tensor.mT.__get__: _swapped_last,  # type: ignore[attr-defined]
    **_both(_permuted, "permute"),
    **_both(_unsqueezed, "unsqueeze"),
    **_both(_squeezed, "squeeze"),
    torch.Tensor.expand: _expanded,
    torch.Tensor.__getitem__: _taken,
    **_both(_divided, "split", "chunk", "narrow"),
    **_both(_picked, "select", "unbind"),
    torch.cat: _joined,
    torch.concat: _joined,
    torch.stack: _joined,
    **_both(_repeated, "repeat_interleave"),
}
