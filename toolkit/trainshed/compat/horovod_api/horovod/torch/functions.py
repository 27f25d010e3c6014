"""Gives all ranks the same beginning: parameters, the optimizer's state, objects."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .mpi_ops import allgather_async, broadcast_, synchronize
from .process_sets import ProcessSet, global_process_set, member_of
from .session import worker
from .submit import announce


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the parameters of one, in place.

    Args:
        params: `model.state_dict()` or `model.named_parameters()`; None may be among them, and is left out.

    Raises:
        ValueError: something in `params` is neither a tensor nor None.
        HorovodInternalError: the models of the ranks differ; says in what.
    """
    pairs = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
        raise ValueError("broadcast_parameters: give model.state_dict() or model.named_parameters()")
    wrong = [name for name, value in pairs if value is not None and not isinstance(value, torch.Tensor)]
    if wrong:
        raise ValueError(
            f"broadcast_parameters: {', '.join(map(repr, wrong[:4]))}: not a tensor; hvd.broadcast_object() takes others"
        )
    _broadcast_tensors("broadcast_parameters", [pair for pair in pairs if pair[1] is not None], root_rank, process_set)


def _broadcast_tensors(what: str, pairs: list[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    """One operation for each device, since the ranks' lists of names must be compared."""
    member_of(process_set)
    if root_rank not in process_set.ranks:
        raise ValueError(f"{what}: root_rank {root_rank} is not in {process_set}")
    here = worker()
    handles = []
    for kind in ("cpu", "cuda"):
        some = [(name, tensor) for name, tensor in pairs if (tensor.device.type == "cuda") == (kind == "cuda")]
        if some or (kind == "cpu" and not pairs):
            handles.append(
                announce(
                    "broadcast",
                    [tensor for _, tensor in some],
                    f"{what}.{kind}",
                    process_set,
                    lambda outputs: None,
                    shown=what,
                    root=int(root_rank),
                    labels=[name for name, _ in some],
                )
            )
    for handle in handles:
        here.wait(handle)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gives all ranks an object of one, by pickle.

    Raises:
        TypeError: it cannot be pickled.
    """
    name = name or "broadcast_object"
    mine = member_of(process_set) == root_rank
    sent = _packed(obj, name) if mine else torch.empty(0, dtype=torch.uint8)
    length = broadcast_(torch.tensor([sent.numel()]), root_rank, f"{name}.length", process_set)
    if not mine:
        sent = torch.empty(int(length.item()), dtype=torch.uint8)
    broadcast_(sent, root_rank, f"{name}.bytes", process_set)
    return obj if mine else _unpacked(sent)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, by rank, by pickle.

    Raises:
        TypeError: one cannot be pickled.
    """
    name = name or "allgather_object"
    sent = _packed(obj, name)
    lengths = allgather_async(torch.tensor([sent.numel()]), f"{name}.lengths", process_set)
    together = allgather_async(sent, f"{name}.bytes", process_set)
    counts = synchronize(lengths).tolist()
    return [_unpacked(part) for part in synchronize(together).split(counts)]


def _packed(obj: Any, name: str) -> torch.Tensor:
    buffer = io.BytesIO()
    try:
        torch.save(obj, buffer)
    except Exception as error:  # pickle raises what it likes
        raise TypeError(f"{name}: a {type(obj).__name__} cannot be sent to other ranks: {error}") from error
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpacked(received: torch.Tensor) -> Any:
    """What another rank of this job has packed; tensors come to the CPU."""
    return torch.load(io.BytesIO(received.numpy().tobytes()), map_location="cpu", weights_only=False)


class _Placeholder:
    """Stands for a tensor in a state that is sent without its tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.kind = tuple(tensor.shape), tensor.dtype, tensor.device.type


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the optimizer's state of one, with its options (learning rate, momentum and so on).

    Ranks whose optimizer has no state yet get one. Numbers, None, tuples and whatever else can be pickled are sent with the
    options, tensors as they are.

    Raises:
        HorovodInternalError: the ranks' optimizers have other parameters.
        TypeError: something in the state cannot be pickled.
    """
    state = optimizer.state_dict()
    tensors: list[tuple[str, torch.Tensor]] = []
    mine = member_of(process_set) == root_rank
    outline = _without_tensors(state, "", tensors) if mine else None
    outline = broadcast_object(outline, root_rank, "broadcast_optimizer_state", process_set)
    if not mine:
        device = next((one.device for group in optimizer.param_groups for one in group["params"]), torch.device("cpu"))
        state = _with_tensors(outline, "", tensors, device)
    _broadcast_tensors("broadcast_optimizer_state", tensors, root_rank, process_set)
    if not mine:
        optimizer.load_state_dict(state)


def _without_tensors(value: Any, name: str, tensors: list[tuple[str, torch.Tensor]]) -> Any:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        tensors.append((name, value))
        return _Placeholder(value)
    if isinstance(value, Mapping):
        return {key: _without_tensors(inner, f"{name}.{key}", tensors) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(inner, f"{name}.{index}", tensors) for index, inner in enumerate(value))
    return value


def _with_tensors(value: Any, name: str, tensors: list[tuple[str, torch.Tensor]], device: torch.device) -> Any:
    if isinstance(value, _Placeholder):
        made = torch.empty(value.shape, dtype=value.dtype, device=device if value.kind == "cuda" else "cpu")
        tensors.append((name, made))
        return made
    if isinstance(value, Mapping):
        return {key: _with_tensors(inner, f"{name}.{key}", tensors, device) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(inner, f"{name}.{index}", tensors, device) for index, inner in enumerate(value))
    return value
