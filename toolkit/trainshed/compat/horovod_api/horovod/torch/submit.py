"""Announces operations: makes requests of tensors, without gradients; `mpi_ops` has the functions that scripts call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from .engine.handle import Handle
from .process_sets import ProcessSet, member_of
from .session import session, worker

Tensors = list[torch.Tensor]
Finish = Callable[[Tensors], Any]


class ReduceOp(IntEnum):
    """How tensors are combined."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


class Reduction(NamedTuple):
    """How tensors are combined, for the engine: `op` of two tensors, and what is multiplied before and after."""

    op: str = "sum"
    average: bool = False
    before: float = 1.0
    after: float = 1.0

    @property
    def fields(self) -> dict[str, Any]:
        """Its part of a request."""
        return {"op": self.op, "average": self.average, "scales": [self.before, self.after]}


def reduction(average: bool | None, op: Any, before: float = 1.0, after: float = 1.0) -> Reduction:
    """The reduction that arguments ask for.

    Raises:
        ValueError: both `average` and `op` are given, or `op` is none of Horovod's.
        NotImplementedError: for Adasum.
    """
    if average is not None and op is not None:
        raise ValueError("average and op say the same: give op only (hvd.Average or hvd.Sum)")
    if op is None:
        op = ReduceOp.Sum if average is False else ReduceOp.Average
    try:
        wanted = ReduceOp(op)
    except ValueError:
        raise ValueError(f"op must be hvd.Average, Sum, Min, Max or Product, not {op!r}") from None
    if wanted == ReduceOp.Adasum:
        raise NotImplementedError("hvd.Adasum is not served: use hvd.Average, or install the real Horovod")
    names = {ReduceOp.Average: "sum"}
    return Reduction(names.get(wanted, wanted.name.lower()), wanted == ReduceOp.Average, float(before), float(after))


def announce(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    finish: Finish,
    shown: str = "",
    **fields: Any,
) -> Handle:
    """Submits an operation.

    Args:
        tensors: all on the CPU, or all on one GPU; dense.
        name: None for the next unnamed one of its kind, which must be the same operation on all ranks.
        shown: what people see instead of the name.
        fields: what else all ranks must know (engine/agreement.py).

    Raises:
        ValueError: such an operation is going on, this rank is not in the set, or the tensors cannot be sent.
    """
    member_of(process_set)
    number = process_set.process_set_id
    if name is None:
        name = session.next_name(f"{kind}.noname", number)
    request = {"set": number, "name": name, "kind": kind, "device": _device(tensors, kind, name), **fields}
    request["tensors"] = [[str(one.dtype).removeprefix("torch."), list(one.shape)] for one in tensors]
    if shown:
        request["shown"] = shown
    return worker().submit(Handle(request, [one.detach() for one in tensors], finish))


def _device(tensors: Sequence[torch.Tensor], kind: str, name: str) -> str:
    kinds = {tensor.device.type for tensor in tensors}
    if kinds - {"cpu", "cuda"} or len({tensor.device for tensor in tensors}) > 1:
        devices = sorted({str(tensor.device) for tensor in tensors})
        raise ValueError(f"{kind} of {name!r}: all tensors must be on the CPU, or on one GPU, not on {', '.join(devices)}")
    if any(tensor.layout != torch.strided for tensor in tensors):
        raise ValueError(f"{kind} of {name!r}: tensors must be dense; hvd.sparse_allreduce_async() takes sparse ones")
    return next(iter(kinds), "cpu")


def sparse_allreduce(tensor: torch.Tensor, name: str | None, how: Reduction, process_set: ProcessSet) -> Handle:
    """Adds up sparse tensors by gathering what is in them; the result is sparse and coalesced.

    Raises:
        ValueError: for a reduction that is neither a sum nor an average.
    """
    if how.op != "sum":
        raise ValueError(f"sparse allreduce of {name!r}: only hvd.Sum and hvd.Average work for sparse tensors")
    if tensor.layout != torch.sparse_coo:
        raise ValueError(f"sparse allreduce of {name!r}: the tensor must be sparse (COO), not {tensor.layout}")
    tensor = tensor.detach().coalesce()
    rows = tensor.indices().t().contiguous()
    return announce(
        "sparse",
        [rows, tensor.values()],
        name,
        process_set,
        lambda outputs: outputs[0],
        full=list(tensor.shape),
        **how.fields,
    )
