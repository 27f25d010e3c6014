"""Functions over the axis along which a tensor is in parts (`part`), as losses over a vocabulary are: each rank finds a few
numbers of its places, and the sums of these make the result, which is whole. Neither the whole tensor nor its gradient is
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from ...ground.exchanges import length_of, start_of, summed
from ...ground.torch_private import assert_async
from .op_call import OpCall, is_ordinary


@dataclass(frozen=True)
class Joint:
    """How such a function is computed.

    given: the tensor in parts, `axis` along which.
    numbers: a rank's, shape (numbers, rows): of its places, shape (rows, places), the number of the first one, and the
        largest value of each row on all ranks (infinity where one is not a number).
    result: of the sums over all ranks, and the largest values.
    how: "min" where not the sums are taken, but the least.
    """

    given: Any
    axis: int
    numbers: Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor]
    result: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    how: str = "sum"

    def computed(self, own: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        """The result, of this rank's places. Collective."""
        own, (first, _) = self._rows(own), self._places(mesh.size(), mesh.get_local_rank())
        top = summed(_largest(own), mesh, "max")
        return self.result(summed(self.numbers(own, first, top), mesh, self.how), top)

    def tried(self, whole: torch.Tensor, ranks: int) -> torch.Tensor:
        """The result, of the whole tensor, as so many ranks find it."""
        rows = self._rows(whole)
        top, places = _largest(rows), [self._places(ranks, rank) for rank in range(ranks)]
        every = torch.stack([self.numbers(rows.narrow(1, *one), one[0], top) for one in places])
        return self.result(every.amin(0) if self.how == "min" else every.sum(0), top)

    def _places(self, ranks: int, rank: int) -> tuple[int, int]:
        """The first place of a rank, and how many it has."""
        size = self.given.shape[self.axis]
        return start_of(size, ranks, rank), length_of(size, ranks, rank)

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its places along the axis in rows, in float32 at least."""
        found = tensor.movedim(self.axis, -1).reshape(-1, tensor.shape[self.axis])
        return found.to(torch.promote_types(found.dtype, torch.float32))


def _largest(rows: torch.Tensor) -> torch.Tensor:
    inf = float("inf")
    return rows.detach().amax(1).nan_to_num(nan=inf, posinf=inf, neginf=-inf)


@dataclass(frozen=True)
class _Targets:
    """The classes that a loss is about.

    labels: one a row. kept: which rows count. shape: of the losses.
    """

    labels: torch.Tensor
    kept: torch.Tensor
    shape: torch.Size
    axis: int
    classes: int
    reduction: str

    @classmethod
    def of(cls, call: OpCall) -> _Targets | None:
        """Those of `cross_entropy` and `nll_loss`; None if they are given otherwise than as numbers of classes."""
        tensor, target = call.argument(0, "input"), call.argument(1, "target")
        axis, reduction = min(1, tensor.ndim - 1), call.argument(6, "reduction", "mean")
        shape = torch.Size((*tensor.shape[:axis], *tensor.shape[axis + 1 :]))
        others = [call.argument(at, name) for at, name in ((2, "weight"), (3, "size_average"), (5, "reduce"))]
        numbers = target.shape == shape and target.dtype is torch.int64 and is_ordinary(target)
        fits = call.axis_of(tensor) == axis and numbers and reduction in ("none", "sum", "mean")
        if not fits or any(one is not None for one in others):
            return None
        labels, classes = target.reshape(-1), tensor.shape[axis]
        kept = labels != call.argument(4, "ignore_index", -100)
        known = (labels >= 0) & (labels < classes)
        assert_async((known | ~kept).all(), f"a target that a loss over {classes} classes does not have")
        return cls(labels, kept, shape, axis, classes, reduction)

    def reduced(self, losses: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """What the loss function gives for the losses of all rows."""
        losses = losses.masked_fill(~self.kept, 0)
        if self.reduction == "none":
            return losses.reshape(self.shape).to(kind)
        total = losses.sum()
        return (total / self.kept.sum() if self.reduction == "mean" else total).to(kind)


def _cross_entropy(call: OpCall) -> Joint | None:
    targets, smoothing = _Targets.of(call), call.argument(7, "label_smoothing", 0.0)
    if targets is None or not 0.0 <= smoothing <= 1.0:
        return None
    kind = _type(F.cross_entropy, call, torch.zeros_like(targets.labels[:1]))

    def numbers(own: torch.Tensor, first: int, top: torch.Tensor) -> torch.Tensor:
        hit = _at(own, targets.labels[:, None], first, -top)
        moved = own - top[:, None]
        others = [moved.sum(1)] if smoothing else []
        return torch.stack([*hit, *others, moved.exp_().sum(1)])

    def result(sums: torch.Tensor, _top: torch.Tensor) -> torch.Tensor:
        losses = sums[-1].log() - (1 - smoothing) * sums[0]
        if smoothing:
            losses = losses - smoothing / targets.classes * sums[1]
        return targets.reduced(losses, kind)

    return Joint(call.argument(0, "input"), targets.axis, numbers, result)


def _nll_loss(call: OpCall) -> Joint | None:
    targets = _Targets.of(call)
    if targets is None:
        return None
    kind = _type(F.nll_loss, call, torch.zeros_like(targets.labels[:1]))

    def numbers(own: torch.Tensor, first: int, _top: torch.Tensor) -> torch.Tensor:
        return _at(own, targets.labels[:, None], first)

    def result(sums: torch.Tensor, _top: torch.Tensor) -> torch.Tensor:
        return targets.reduced(-sums[0], kind)

    return Joint(call.argument(0, "input"), targets.axis, numbers, result)


def _gather(call: OpCall) -> Joint | None:
    """With as many indices in each row."""
    tensor, at, index = call.argument(0, "input"), call.argument(1, "dim"), call.argument(2, "index")
    axis = call.axis_of(tensor)
    if axis is None or axis != at % tensor.ndim or not is_ordinary(index) or index.dtype is not torch.int64:
        return None
    sizes = [*index.shape[:axis], tensor.shape[axis], *index.shape[axis + 1 :]]
    if len(call.args) + len(call.kwargs) != 3 or sizes != [*tensor.shape] or not index.numel():
        return None
    wanted = index.movedim(axis, -1)
    known = (index >= 0) & (index < tensor.shape[axis])
    assert_async(known.all(), f"an index that gather() of {tensor.shape[axis]} places does not have")

    def numbers(own: torch.Tensor, first: int, _top: torch.Tensor) -> torch.Tensor:
        return _at(own, wanted.reshape(-1, wanted.shape[-1]), first)

    def result(sums: torch.Tensor, _top: torch.Tensor) -> torch.Tensor:
        return sums.t().reshape(wanted.shape).movedim(-1, axis).to(tensor.dtype)

    return Joint(tensor, axis, numbers, result)


def _logsumexp(call: OpCall) -> Joint | None:
    found = _over_the_axis(call)
    if found is None:
        return None
    tensor, axis, shape = found
    kind = _type(torch.logsumexp, call, 1)

    def numbers(own: torch.Tensor, _first: int, top: torch.Tensor) -> torch.Tensor:
        return (own - _finite(top)[:, None]).exp_().sum(1)[None]

    def result(sums: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        return (_finite(top) + sums[0].log()).reshape(shape).to(kind)

    return Joint(tensor, axis, numbers, result)


def _argmax(call: OpCall) -> Joint | None:
    found = _over_the_axis(call)
    if found is None:
        return None
    tensor, axis, shape = found

    def numbers(own: torch.Tensor, first: int, top: torch.Tensor) -> torch.Tensor:
        largest = (own >= top[:, None]) | own.isnan()
        return torch.where(largest.any(1), first + largest.byte().argmax(1), tensor.shape[axis])[None]

    return Joint(tensor, axis, numbers, lambda least, _top: least[0].reshape(shape), "min")


def _over_the_axis(call: OpCall) -> tuple[Any, int, list[int]] | None:
    """The tensor, its axis and the result's shape, of a function of one tensor that takes this axis away."""
    first, at, keeps = call.first(), call.argument(1, "dim"), call.argument(2, "keepdim", False)
    (at,) = at if isinstance(at, (tuple, list)) else (at,)
    if first is None or type(at) is not int or at % first[0].ndim != first[1] or type(keeps) is not bool:
        return None
    tensor, axis = first
    return tensor, axis, [*tensor.shape[:axis], *([1] if keeps else []), *tensor.shape[axis + 1 :]]


def _at(own: torch.Tensor, wanted: torch.Tensor, first: int, added: torch.Tensor | None = None) -> torch.Tensor:
    """What a rank has at places of each row, and zeros for those of other ranks; shape (places, rows).

    Args:
        wanted: numbers of places, shape (rows, places).
        added: to what is found in each row.
    """
    place = (wanted - first).t()
    here = (place >= 0) & (place < own.shape[1])
    found = own[torch.arange(len(own), device=own.device), torch.where(here, place, 0)]
    return (found if added is None else found + added).masked_fill(~here, 0)


def _finite(top: torch.Tensor) -> torch.Tensor:
    return top.masked_fill(top.isinf(), 0)


def _type(func: Callable[..., torch.Tensor], call: OpCall, *others: Any) -> torch.dtype:
    """Of what a function gives for a tensor of this type, which autocast may change."""
    tensor = call.argument(0, "input")
    return func(torch.zeros(1, 1, dtype=tensor.dtype, device=tensor.device), *others).dtype


_RULES: dict[Any, Callable[[OpCall], Joint | None]] = {
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll_loss,
    **dict.fromkeys((torch.gather, torch.Tensor.gather), _gather),
    **dict.fromkeys((torch.logsumexp, torch.Tensor.logsumexp), _logsumexp),
    **dict.fromkeys((torch.argmax, torch.Tensor.argmax), _argmax),
}
_LOG_SOFTMAX = (F.log_softmax, torch.log_softmax, torch.Tensor.log_softmax)


def joint_of(call: OpCall) -> Joint | None:
    """How a function is computed of a few numbers of each rank; None if it cannot be."""
    rule = _RULES.get(call.func)
    if rule is None or call.kwargs.get("out") is not None:
        return None
    try:
        joint = rule(call)
    except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError):  # torch says better what is wrong
        return None
    # Of large integers float32 would round some.
    return joint if joint is not None and joint.given.numel() and joint.given.is_floating_point() else None


def in_other_words(call: OpCall) -> Callable[[], Any] | None:
    """The same by other functions, each of which can be computed so: `log_softmax` over the axis. None for all else."""
    if call.func not in _LOG_SOFTMAX:
        return None
    first, at = call.first(), call.argument(1, "dim")
    if first is None or len(call.args) > 2 or type(at) is not int or at % first[0].ndim != first[1]:
        return None
    tensor, axis = first
    kind = call.kwargs.get("dtype") or _type(F.log_softmax, call, 1)
    wide = tensor.to(torch.promote_types(kind, torch.promote_types(tensor.dtype, torch.float32)))
    return lambda: (wide - wide.logsumexp(axis, True)).to(kind)
