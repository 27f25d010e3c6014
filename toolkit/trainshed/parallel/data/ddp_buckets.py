"""The buckets of a DistributedDataParallel, which it offers no way to change later.

Another one is made for the same module, and the first one goes on with what that exchanges gradients with. Where a version
of torch has it otherwise, `refusal` says so, and the model stays as it is.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..ground.torch_private import COMPILES, LEAVES_OUT, communication_hooks

_FIRST = 1 << 20  # bytes of the first bucket where DDP chooses
_MIB = 1 << 20
# What the other one is made with; and what stays, beside all that any module has.
_OPTIONS = (
    *("device_ids", "output_device", "dim", "process_group", "find_unused_parameters", "gradient_as_bucket_view"),
    *("static_graph", "batched_grad_copy"),
)
_STAYS = ("require_backward_grad_sync", "require_forward_param_sync")


def refusal(model: DistributedDataParallel) -> str:
    """Why a model's gradients are left to DDP, "" where they need not be."""
    if any(not hasattr(model, name) for name in ("reducer", "logger", "parameters_to_ignore", "bucket_bytes_cap")):
        return f"torch {torch.__version__} has other buckets than this version knows"
    if getattr(model, COMPILES, False):
        return "torch.compile exchanges the gradients"
    if getattr(model, "mixed_precision", None) is not None:
        return "mixed_precision has an exchange of its own"
    if communication_hooks(model):
        return "the model has another communication hook"
    if getattr(model, "skip_all_reduce_unused_params", False):
        return "skip_all_reduce_unused_params leaves out buckets"
    if getattr(model, LEAVES_OUT, None):
        return "delay_all_reduce_named_params has an exchange of its own"
    sparse = [module for module in model.module.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    parameters = parameters_of(model)
    if any(module.sparse and any(module.weight is one for one in parameters) for module in sparse):
        return "gradients are sparse"
    if any(_steps_in_backward(one) for one in parameters):
        return "optimizers step within the backward"
    places = sorted({one.device.type for one in parameters} - {"cpu"})
    if places:
        return f"gradients are on {' and '.join(places)}, where NCCL knows the links itself"
    return ""


def _steps_in_backward(parameter: torch.Tensor) -> bool:
    """Whether torch has put an optimizer on it."""
    put = (one for one in vars(parameter).values() if isinstance(one, list))
    return any(isinstance(one, torch.optim.Optimizer) for some in put for one in some)


def parameters_of(model: DistributedDataParallel) -> list[torch.Tensor]:
    """The parameters whose gradients it exchanges."""
    ignored = model.parameters_to_ignore
    found = {
        id(one): one
        for where, module in model.module.named_modules()
        for name, one in module.named_parameters(recurse=False)
        if one.requires_grad and f"{where}.{name}" not in ignored
    }
    return list(found.values())


def own_sizes(model: DistributedDataParallel) -> tuple[int, ...]:
    """Bytes of its buckets, as it was made: of the first ones, and of all others."""
    listed = tuple(getattr(model, "bucket_bytes_cap_list", ()))
    if listed:
        return listed
    cap = int(model.bucket_bytes_cap)
    return (_FIRST, cap) if getattr(model, "bucket_bytes_cap_default", False) and cap > _FIRST else (cap,)


class OwnBuckets:
    """The buckets that a model was made with, to be exchanged for others and back.

    Call its methods between a backward and the next forward, on all ranks alike.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        listed = [size / _MIB for size in getattr(model, "bucket_bytes_cap_list", ())]
        given = None if getattr(model, "bucket_bytes_cap_default", False) else model.bucket_bytes_cap / _MIB
        self._caps: dict[str, Any] = {"bucket_cap_mb_list": listed} if listed else {"bucket_cap_mb": given}

    def change(self, model: DistributedDataParallel, size: int) -> None:
        """Gives the model buckets that are closed at `size` bytes, without a communication hook."""
        _rebuild(model, {"bucket_cap_mb": size / _MIB})

    def restore(self, model: DistributedDataParallel) -> None:
        """Gives the model back what it had."""
        _rebuild(model, self._caps)


def _rebuild(model: DistributedDataParallel, caps: dict[str, Any]) -> None:
    """Makes a new reducer, which measures the order of gradients anew in its first backward."""
    native: Any = inspect.unwrap(DistributedDataParallel.__init__)  # which may be ours, and watch what is made
    known = inspect.signature(native).parameters
    options = {name: getattr(model, name) for name in _OPTIONS if name in known and hasattr(model, name)}
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    made = DistributedDataParallel.__new__(DistributedDataParallel)
    native(made, model.module, init_sync=False, **options, **{buffers: model.broadcast_buffers}, **caps)
    kept = {*vars(nn.Module()), *_STAYS}  # and whether it takes part in a `join`
    there = {name: one for name, one in vars(made).items() if name not in kept and not _is_of_join(one)}
    vars(model).update(there)  # the reducer before takes its hooks off where nobody has it


def _is_of_join(value: Any) -> bool:
    return type(value).__module__ == "torch.distributed.algorithms.join"
