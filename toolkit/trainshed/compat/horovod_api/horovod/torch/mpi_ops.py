"""Horovod's operations on tensors.

Each has up to four forms: `x` returns new tensors, and gradients flow through it; `x_` writes into its argument; `x_async`
and `x_async_` return a handle for `synchronize` and `poll`. Operations with a name are matched by it, in whatever order
ranks submit them; those without one by their order. Shapes and dtypes must be those of all ranks (in allgather and alltoall
each has as many rows as it likes). What does not match, and a rank that is gone, is a HorovodInternalError on all ranks that
wait, with the tensor's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..common.exceptions import HorovodInternalError
from .compression import Compression
from .differentiable import Allgather, Allreduce, Alltoall, Broadcast, Reducescatter
from .engine.handle import Handle
from .process_sets import ProcessSet, global_process_set, member_of
from .session import session, worker
from .submit import ReduceOp, Reduction, announce, reduction, sparse_allreduce

Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product

__all__ = ["HorovodInternalError", "ReduceOp"]


def synchronize(handle: Handle) -> Any:
    """Waits for an operation; returns what it gives.

    Raises:
        HorovodInternalError: it failed.
    """
    return worker().wait(handle)


def poll(handle: Handle) -> bool:
    """Returns whether `synchronize` would return at once."""
    return handle.is_over()


def join(device: int = -1) -> int:
    """For ranks that have no more data: takes part in the others' operations with zeros until all have joined.

    Averages are still over all ranks. Allreduces with hvd.Sum and hvd.Average, allgathers (no rows), broadcasts of other
    ranks and barriers go on; other operations fail on the ranks that submit them.

    Args:
        device: the GPU that has the zeros; -1 for the one of earlier operations.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: a rank ended without joining.
    """
    return worker().join(device)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits for all ranks of the set."""
    synchronize(announce("barrier", [], None, process_set, lambda outputs: None))


# --- allreduce -------------------------------------------------------------------------------------------------------


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """A new tensor: those of all ranks, averaged by default. Gradients flow through it.

    Args:
        average: deprecated: True for `op=Average`, False for `op=Sum`.
        compression: what is sent: `Compression.none` or `Compression.fp16`.
        op: Average (whole numbers are rounded down), Sum, Min, Max or Product; truth values are added up with "or".
        prescale_factor, postscale_factor: multiply the tensor before and after.
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    if tensor.layout == torch.sparse_coo:
        made: torch.Tensor = synchronize(sparse_allreduce(tensor, name, how, process_set))
        return made
    return _allreduced([tensor], name, compression, how, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allreduce` for several tensors as one operation."""
    how = reduction(average, op, prescale_factor, postscale_factor)
    return _allreduced(list(tensors), name, compression, how, process_set)


def _allreduced(
    tensors: list[torch.Tensor], name: str | None, compression: Any, how: Reduction, process_set: ProcessSet
) -> list[torch.Tensor]:
    packed = [compression.compress(tensor) for tensor in tensors]
    made = Allreduce.apply(_named("allreduce", name, process_set), how, process_set, *(sent for sent, _ in packed))
    return [compression.decompress(one, context) for one, (_, context) in zip(made, packed, strict=True)]


def _named(kind: str, name: str | None, process_set: ProcessSet) -> str:
    return name if name is not None else session.next_name(f"{kind}.noname", process_set.process_set_id)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins `allreduce`; its handle gives a new tensor."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return allreduce_async_(copy, average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`allreduce` in place; returns the tensor."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    made: torch.Tensor = synchronize(handle)
    return made


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins `allreduce` in place; its handle gives the tensor."""
    how = reduction(average, op, prescale_factor, postscale_factor)
    return announce("allreduce", [tensor], name, process_set, lambda outputs: tensor, **how.fields)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins `grouped_allreduce`; its handle gives new tensors."""
    copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
    return grouped_allreduce_async_(copies, average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`grouped_allreduce` in place; returns the tensors."""
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    made: list[torch.Tensor] = synchronize(handle)
    return made


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins `grouped_allreduce` in place; its handle gives the tensors."""
    how = reduction(average, op, prescale_factor, postscale_factor)
    given = list(tensors)
    return announce("allreduce", given, name, process_set, lambda outputs: given, **how.fields)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: Any = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begins to add up sparse tensors; its handle gives a sparse one, coalesced."""
    return sparse_allreduce(tensor, name, reduction(None, op), process_set)


# --- allgather -------------------------------------------------------------------------------------------------------


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The rows of all ranks below each other, by rank; as many as each has. Gradients flow through it."""
    return grouped_allgather([tensor], name, process_set)[0]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Begins `allgather`."""
    _has_rows("allgather", [tensor])
    return announce("allgather", [tensor], name, process_set, lambda outputs: outputs[0])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` for several tensors as one operation."""
    _has_rows("allgather", tensors)
    return list(Allgather.apply(_named("allgather", name, process_set), process_set, *tensors))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begins `grouped_allgather`."""
    _has_rows("allgather", tensors)
    return announce("allgather", tensors, name, process_set, lambda outputs: outputs)


def _has_rows(kind: str, tensors: Sequence[torch.Tensor]) -> None:
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(f"{kind}: a tensor without dimensions has no rows; give it one with reshape(1)")


# --- broadcast -------------------------------------------------------------------------------------------------------


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor: that of `root_rank`, a rank among all. Gradients flow through it, to that rank."""
    _in_set(root_rank, process_set)
    made: torch.Tensor = Broadcast.apply(_named("broadcast", name, process_set), int(root_rank), process_set, tensor)
    return made


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begins `broadcast`; its handle gives a new tensor."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return broadcast_async_(copy, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """`broadcast` in place; returns the tensor."""
    made: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return made


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begins `broadcast` in place; its handle gives the tensor."""
    _in_set(root_rank, process_set)
    return announce("broadcast", [tensor], name, process_set, lambda outputs: tensor, root=int(root_rank))


def _in_set(root_rank: int, process_set: ProcessSet) -> None:
    member_of(process_set)
    if root_rank not in process_set.ranks:
        raise ValueError(f"broadcast: root_rank {root_rank} is not in {process_set}")


# --- alltoall --------------------------------------------------------------------------------------------------------


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The rows that all ranks have for this one, by rank. Gradients flow through it.

    Args:
        splits: how many rows each rank gets; None for equally many.

    Returns:
        The rows; where splits are given, also how many came from each rank.
    """
    given = _splits(tensor, splits, process_set)
    made, came = Alltoall.apply(_named("alltoall", name, process_set), given, process_set, tensor)
    return made if splits is None else (made, came)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins `alltoall`."""
    given = _splits(tensor, splits, process_set)
    handle: Handle

    def finish(outputs: list[torch.Tensor]) -> Any:
        return outputs[0] if splits is None else (outputs[0], torch.tensor(handle.extra, dtype=torch.int32))

    handle = announce("alltoall", [tensor], name, process_set, finish, splits=given)
    return handle


def _splits(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None, process_set: ProcessSet) -> list[int]:
    _has_rows("alltoall", [tensor])
    rows, count = tensor.shape[0], process_set.size()
    if splits is None:
        if rows % count:
            raise ValueError(f"alltoall: {rows} rows cannot be shared evenly among {count} ranks: give splits")
        return [rows // count] * count
    given = [int(one) for one in (splits.tolist() if isinstance(splits, torch.Tensor) else splits)]
    if len(given) != count or min(given, default=0) < 0 or sum(given) != rows:
        raise ValueError(f"alltoall: splits {given} must be {count} numbers of rows that make {rows} in all")
    return given


# --- reducescatter ---------------------------------------------------------------------------------------------------


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's share of the rows of the reduced tensor; the first ranks have one more where they cannot be equal."""
    return grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)[0]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begins `reducescatter`."""
    _has_rows("reducescatter", [tensor])
    how = reduction(None, op, prescale_factor, postscale_factor)
    return announce("reducescatter", [tensor], name, process_set, lambda outputs: outputs[0], **how.fields)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` for several tensors as one operation."""
    _has_rows("reducescatter", tensors)
    how = reduction(None, op, prescale_factor, postscale_factor)
    packed = [compression.compress(tensor) for tensor in tensors]
    named = _named("reducescatter", name, process_set)
    made = Reducescatter.apply(named, how, process_set, *(sent for sent, _ in packed))
    return [compression.decompress(one, context) for one, (_, context) in zip(made, packed, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begins `grouped_reducescatter`."""
    _has_rows("reducescatter", tensors)
    how = reduction(None, op, prescale_factor, postscale_factor)
    return announce("reducescatter", tensors, name, process_set, lambda outputs: outputs, **how.fields)
