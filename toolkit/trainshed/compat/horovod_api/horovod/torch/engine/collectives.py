"""Runs agreed operations on process groups of torch.distributed: gloo for tensors on the CPU, NCCL for those on GPUs.

The groups are made directly, and not by `init_process_group`, so a script may use torch.distributed beside Horovod. All
functions are called by one thread, in an order that is the same on all ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .agreement import WORLD, Message
from .handle import Handle

_BUCKET = 64 << 20  # bytes that are sent as one
# What gloo cannot add up is added up as something that can hold it.
_CARRIERS = {torch.bool: torch.uint8, torch.int16: torch.int32}
_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
Tensors = list[torch.Tensor]


class Collectives:
    """The process groups of this rank's process sets, and what runs on them.

    Args:
        store: where the members of a group find each other.
        timeout: how long a collective may take whose ranks are all there.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._timeout = store, rank, timeout
        self._members: dict[int, tuple[int, ...]] = {}
        self._groups: dict[tuple[int, str], Any] = {}
        self._streams: dict[int, torch.cuda.Stream] = {}
        self.cuda_device = -1  # the one of the last operation on a GPU; has the zeros of a rank that joined
        self.add(WORLD, tuple(range(size)))

    def add(self, number: int, ranks: Sequence[int]) -> None:
        """A process set; all its members are here at the same time."""
        self._members[number] = tuple(ranks)
        if self._rank in ranks:
            self._group(number, "cpu")

    def remove(self, number: int) -> None:
        """Forgets a process set."""
        self._members.pop(number, None)
        for key in [key for key in self._groups if key[0] == number]:
            del self._groups[key]

    def run(self, batch: list[Message], handles: list[Handle | None]) -> None:
        """Runs what was agreed on as one, and ends the handles; None stands for a rank that joined.

        Raises:
            RuntimeError: a rank that takes part is gone, or the tensors cannot be sent.
        """
        first = batch[0]
        here = [handle or _nothing(run, self.cuda_device) for run, handle in zip(batch, handles, strict=True)]
        with self._on_stream(here):
            outputs = self._outputs(first, batch, here)
            for handle, made in zip(here, outputs, strict=True):
                handle.succeed(made)

    def _outputs(self, first: Message, batch: list[Message], here: list[Handle]) -> list[Tensors]:
        number, kind = first["set"], first["kind"]
        if kind == "add_set":
            self.add(first["id"], first["ranks"])
            here[0].extra = first["id"]
            return [[]]
        if kind == "remove_set":
            self.remove(here[0].request["root"])
            return [[]]
        if kind == "barrier":
            return [[]]
        group = self._group(number, first["device"])
        members = self._members[number]
        mine = members.index(self._rank)
        if kind == "allreduce":
            _allreduce(group, len(members), here)
            return [handle.tensors for handle in here]
        handle = here[0]
        if kind == "broadcast":
            _broadcast(group, members.index(handle.request["root"]), mine, handle.tensors)
            return [handle.tensors]
        if kind == "alltoall":
            tensor, given = _alltoall(group, mine, first["sizes"], handle.tensors[0])
            handle.extra = given
            return [[tensor]]
        if kind == "reducescatter":
            return [[_reducescatter(group, mine, len(members), handle, tensor) for tensor in handle.tensors]]
        gathered = [
            _allgather(group, mine, sizes, tensor)
            for sizes, tensor in zip(first["sizes"], _rows(first, handle), strict=True)
        ]
        handle.extra = first["sizes"]
        return [[_sparse(first, handle, gathered, len(members))] if kind == "sparse" else gathered]

    def _group(self, number: int, device: str) -> Any:
        """The process group for tensors on `cpu` or `cuda`; None where this rank is alone."""
        members = self._members[number]
        if len(members) == 1:
            return None
        key = (number, device)
        if key not in self._groups:
            store = dist.PrefixStore(f"{number}/{device}", self._store)
            made: Callable[..., Any] = dist.ProcessGroupNCCL if device == "cuda" else dist.ProcessGroupGloo
            self._groups[key] = made(store, members.index(self._rank), len(members), self._timeout)
        return self._groups[key]

    def _on_stream(self, handles: list[Handle]) -> contextlib.AbstractContextManager[Any]:
        """On a GPU, a stream of ours that waits for what the script had enqueued when it submitted."""
        tensors = [tensor for handle in handles for tensor in handle.tensors if tensor.is_cuda]
        if not tensors:
            return contextlib.nullcontext()
        device = tensors[0].device
        self.cuda_device = device.index
        stream = self._streams.setdefault(device.index, torch.cuda.Stream(device))
        for handle in handles:
            if handle.submitted is not None:
                stream.wait_event(handle.submitted)
        for tensor in tensors:
            tensor.record_stream(stream)
        return torch.cuda.stream(stream)


def _nothing(run: Message, cuda_device: int) -> Handle:
    """What a rank that joined takes part with: zeros, or no rows."""
    like = run.get("like") or {"name": run["name"], "set": run["set"]}
    device = torch.device("cuda", max(0, cuda_device)) if like.get("device") == "cuda" else torch.device("cpu")
    tensors = [
        torch.zeros([0, *shape[1:]] if "sizes" in run else shape, dtype=getattr(torch, dtype), device=device)
        for dtype, shape in like.get("tensors", [])
    ]
    return Handle(like, tensors, lambda outputs: outputs)


def _rows(run: Message, handle: Handle) -> Tensors:
    """What a rank gives to an allgather; for a sparse allreduce of which it has nothing, no rows."""
    if run["kind"] == "sparse" and handle.request["kind"] == "allreduce":
        return [
            torch.zeros([0, *shape[1:]], dtype=getattr(torch, dtype), device=handle.tensors[0].device)
            for dtype, shape in run["like"]["tensors"]
        ]
    return handle.tensors


# --- allreduce -------------------------------------------------------------------------------------------------------


def _allreduce(group: Any, count: int, handles: list[Handle]) -> None:
    """Reduces the tensors of all handles in place, those that are treated alike as one."""
    op = handles[0].request["op"]
    alike: dict[tuple[torch.dtype, bool, float, float], Tensors] = {}
    for handle in handles:
        average, (before, after) = handle.request["average"], handle.request["scales"]
        for tensor in handle.tensors:
            alike.setdefault((tensor.dtype, average, before, after), []).append(tensor)
    for (_, average, before, after), tensors in alike.items():
        for bucket in _buckets(tensors):
            whole = len(bucket) == 1 and bucket[0].is_contiguous()
            flat = bucket[0] if whole else torch.cat([tensor.reshape(-1) for tensor in bucket])
            _scale(flat, before)
            _reduce(group, flat, op)
            if average:
                _divide(flat, count)
            _scale(flat, after)
            if not whole:
                for tensor, piece in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                    tensor.copy_(piece.view_as(tensor))


def _reduce(group: Any, tensor: torch.Tensor, op: str) -> None:
    """Reduces a contiguous tensor in place."""
    carrier = _CARRIERS.get(tensor.dtype)
    if group is None or not tensor.numel():
        return
    if carrier is None:
        _reduce_flat(group, tensor, op)
        return
    carried = tensor.to(carrier)
    # A sum of truth values is true where one of them is.
    _reduce_flat(group, carried, "max" if tensor.dtype == torch.bool and op == "sum" else op)
    tensor.copy_(carried)


def _reduce_flat(group: Any, tensor: torch.Tensor, op: str) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = _OPS[op]
    group.allreduce([torch.view_as_real(tensor) if tensor.is_complex() else tensor], options).wait()


def _scale(tensor: torch.Tensor, factor: float) -> None:
    if factor == 1.0:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.double() * factor)


def _divide(tensor: torch.Tensor, count: int) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.div_(count)
    elif tensor.dtype != torch.bool:
        tensor.div_(count, rounding_mode="floor")


def _buckets(tensors: Tensors) -> list[Tensors]:
    """The tensors in groups of at most `_BUCKET` bytes, or of one."""
    buckets: list[Tensors] = []
    size = 0
    for tensor in tensors:
        if not buckets or size + tensor.nbytes > _BUCKET:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return buckets


# --- moving rows -----------------------------------------------------------------------------------------------------


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor: so every dtype can be sent, of which gloo knows a few."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # a single element may have any stride


def _row_bytes(tensor: torch.Tensor) -> int:
    row = 1
    for length in tensor.shape[1:]:
        row *= length
    return row * tensor.element_size()


def _broadcast(group: Any, root: int, mine: int, tensors: Tensors) -> None:
    if group is None:
        return
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    for bucket in _buckets([tensor for tensor in tensors if tensor.numel()]):
        whole = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in bucket]
        parts = [_as_bytes(tensor) for tensor in whole]
        sent = parts[0] if len(parts) == 1 else torch.cat(parts)
        group.broadcast([sent], options).wait()
        if mine == root:
            continue
        if len(parts) > 1:
            for part, piece in zip(parts, sent.split([part.numel() for part in parts]), strict=True):
                part.copy_(piece)
        for tensor, received in zip(bucket, whole, strict=True):
            if tensor is not received:
                tensor.copy_(received)


def _allgather(group: Any, mine: int, rows: list[int], tensor: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks, below each other."""
    made = tensor.new_empty([sum(rows), *tensor.shape[1:]])
    row = _row_bytes(tensor)
    if group is None:
        return made.copy_(tensor)
    if not made.numel():
        return made
    longest = max(rows) * row
    sent = tensor.new_zeros(longest, dtype=torch.uint8)
    sent[: rows[mine] * row] = _as_bytes(tensor.contiguous())
    received = [torch.empty_like(sent) for _ in rows]
    group.allgather([received], [sent]).wait()
    _as_bytes(made).copy_(torch.cat([part[: count * row] for part, count in zip(received, rows, strict=True)]))
    return made


def _alltoall(group: Any, mine: int, sizes: list[list[int]], tensor: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The rows that all ranks give to this one, and how many each gives."""
    given = [splits[mine] for splits in sizes]
    made = tensor.new_empty([sum(given), *tensor.shape[1:]])
    row = _row_bytes(tensor)
    if group is None:
        return made.copy_(tensor), given
    if sum(map(sum, sizes)) * row:
        sent, received = _as_bytes(tensor.contiguous()), _as_bytes(made)
        takes, gives = [count * row for count in given], [count * row for count in sizes[mine]]
        group.alltoall_base(received, sent, takes, gives).wait()
    return made, given


def _reducescatter(group: Any, mine: int, count: int, handle: Handle, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's share of the rows, added up; the first ranks have one row more where they cannot be shared evenly."""
    least, more = divmod(tensor.shape[0], count)
    start, length = mine * least + min(mine, more), least + (mine < more)
    work = tensor.clone(memory_format=torch.contiguous_format)
    before, after = handle.request["scales"]
    _scale(work, before)
    _reduce(group, work, handle.request["op"])
    share = work.narrow(0, start, length).clone()
    if handle.request["average"]:
        _divide(share, count)
    _scale(share, after)
    return share


def _sparse(run: Message, handle: Handle, gathered: Tensors, count: int) -> torch.Tensor:
    """A sparse tensor of the indices (as rows) and values of all ranks, which adds them up."""
    indices, values = gathered
    request = handle.request if handle.request["kind"] == "sparse" else run["like"]
    before, after = request["scales"]
    if request["average"]:
        values = values / count
    _scale(values, before * after)
    return torch.sparse_coo_tensor(indices.t(), values, request["full"], check_invariants=False).coalesce()
