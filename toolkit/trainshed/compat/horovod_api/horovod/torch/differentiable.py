"""Operations through which gradients flow: those of the sum of all ranks' losses.

So the gradient of a sum is the sum of all ranks' gradients, that of an average their average, and what a rank gave to an
allgather gets the gradients that all ranks have for it. The backward of an operation has its name with `.backward`, so
ranks need not come to it in the same order.
"""

from __future__ import annotations

from typing import Any

import torch

from .process_sets import ProcessSet, member_of
from .session import worker
from .submit import Reduction, Tensors, announce

_SUM = Reduction()


def reduce_now(tensors: Tensors, name: str | None, how: Reduction, process_set: ProcessSet) -> Tensors:
    """The reduced tensors; those given stay as they are."""
    copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
    handle = announce("allreduce", copies, name, process_set, lambda outputs: outputs, **how.fields)
    made: Tensors = worker().wait(handle)
    return made


class Allreduce(torch.autograd.Function):
    """Reduces tensors of all ranks."""

    @staticmethod
    def forward(ctx: Any, name: str, how: Reduction, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.of = (name, how, process_set)
        return tuple(reduce_now(list(tensors), name, how, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, how, process_set = ctx.of
        if how.op != "sum":
            raise NotImplementedError(f"allreduce of {name!r}: gradients flow through hvd.Sum and hvd.Average only")
        return None, None, None, *reduce_now(list(gradients), f"{name}.backward", how, process_set)


class Allgather(torch.autograd.Function):
    """Puts the rows of all ranks below each other."""

    @staticmethod
    def forward(ctx: Any, name: str, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        handle = announce("allgather", tensors, name, process_set, lambda outputs: outputs)
        made = worker().wait(handle)
        ctx.of = (name, process_set, handle.extra)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, process_set, sizes = ctx.of
        whole = reduce_now(list(gradients), f"{name}.backward", _SUM, process_set)
        mine = process_set.rank()
        return None, None, *(one.narrow(0, sum(rows[:mine]), rows[mine]) for one, rows in zip(whole, sizes, strict=True))


class Broadcast(torch.autograd.Function):
    """Gives all ranks the tensor of one."""

    @staticmethod
    def forward(ctx: Any, name: str, root: int, process_set: ProcessSet, tensor: torch.Tensor) -> Any:
        ctx.of = (name, root, process_set)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        handle = announce("broadcast", [copy], name, process_set, lambda outputs: outputs[0], root=root)
        return worker().wait(handle)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, root, process_set = ctx.of
        (total,) = reduce_now(list(gradients), f"{name}.backward", _SUM, process_set)
        return None, None, None, total if member_of(process_set) == root else torch.zeros_like(total)


class Alltoall(torch.autograd.Function):
    """Gives each rank its rows, and gets from each its own; also returns how many came from each."""

    @staticmethod
    def forward(ctx: Any, name: str, splits: list[int], process_set: ProcessSet, tensor: torch.Tensor) -> Any:
        made, ctx.came = exchange(tensor, splits, name, process_set)
        ctx.of = (name, process_set)
        came = torch.tensor(ctx.came, dtype=torch.int32)
        ctx.mark_non_differentiable(came)
        return made, came

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, process_set = ctx.of
        back, _ = exchange(gradients[0].contiguous(), ctx.came, f"{name}.backward", process_set)
        return None, None, None, back


def exchange(tensor: torch.Tensor, splits: list[int], name: str, process_set: ProcessSet) -> tuple[torch.Tensor, list[int]]:
    """The rows that all ranks have for this one, and how many came from each."""
    handle = announce("alltoall", [tensor], name, process_set, lambda outputs: outputs[0], splits=splits)
    made = worker().wait(handle)
    return made, list(handle.extra)


class Reducescatter(torch.autograd.Function):
    """Reduces tensors of all ranks, of which each gets a share of the rows."""

    @staticmethod
    def forward(ctx: Any, name: str, how: Reduction, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.of = (name, how, process_set)
        handle = announce("reducescatter", tensors, name, process_set, lambda outputs: outputs, **how.fields)
        return tuple(worker().wait(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, how, process_set = ctx.of
        if how.op != "sum":
            raise NotImplementedError(f"reducescatter of {name!r}: gradients flow through hvd.Sum and hvd.Average only")
        given = [one.contiguous() for one in gradients]
        handle = announce("allgather", given, f"{name}.backward", process_set, lambda outputs: outputs)
        factor = how.before * how.after / (process_set.size() if how.average else 1)
        return None, None, None, *(whole * factor for whole in worker().wait(handle))
