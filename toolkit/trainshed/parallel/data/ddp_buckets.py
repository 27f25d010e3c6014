"""Torch's internals: the buckets of a DistributedDataParallel, which it offers no way to change later.

Everything of DDP that is not public in torch is used here alone. Where a version of torch has it otherwise, `refusal` says
so, and the model stays as it is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

_PARTS = ("_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_ddp_init_helper", "reducer", "logger")
_FIRST = 1 << 20  # bytes of the first bucket where DDP chooses


def refusal(model: DistributedDataParallel) -> str:
    """Why a model's gradients are left to DDP, "" where they need not be."""
    if any(not hasattr(model, name) for name in _PARTS) or not hasattr(model.reducer, "_remove_autograd_hooks"):
        return f"torch {torch.__version__} has other buckets than this version knows"
    if getattr(model, "_use_python_reducer", False):
        return "torch.compile exchanges the gradients"
    if getattr(model, "mixed_precision", None) is not None:
        return "mixed_precision has an exchange of its own"
    if getattr(model, "_comm_hooks", None):
        return "the model has another communication hook"
    if getattr(model, "skip_all_reduce_unused_params", False):
        return "skip_all_reduce_unused_params leaves out buckets"
    if getattr(model, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params has an exchange of its own"
    parameters, sparse = model._build_params_for_reducer()
    if any(sparse):
        return "gradients are sparse"
    if any(hasattr(one, "_in_backward_optimizers") for one in parameters):
        return "optimizers step within the backward"
    places = sorted({one.device.type for one in parameters} - {"cpu"})
    if places:
        return f"gradients are on {' and '.join(places)}, where NCCL knows the links itself"
    return ""


def parameters_of(model: DistributedDataParallel) -> list[torch.Tensor]:
    """The parameters whose gradients it exchanges."""
    return list(model._build_params_for_reducer()[0])


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
        names = ("bucket_bytes_cap", "bucket_bytes_cap_list", "bucket_bytes_cap_default", "_bucket_config")
        self._values = {name: getattr(model, name) for name in names if hasattr(model, name)}

    def change(self, model: DistributedDataParallel, size: int) -> None:
        """Gives the model buckets that are closed at `size` bytes, without a communication hook."""
        values: dict[str, Any] = {"bucket_bytes_cap": size, "bucket_bytes_cap_list": [], "bucket_bytes_cap_default": False}
        if "_bucket_config" in self._values:
            values["_bucket_config"] = dataclasses.replace(
                self._values["_bucket_config"], bucket_bytes_cap=size, per_bucket_bytes_caps=(), first_bucket_bytes_cap=size
            )
        _rebuild(model, {name: value for name, value in values.items() if name in self._values})

    def restore(self, model: DistributedDataParallel) -> None:
        """Gives the model back what it had."""
        _rebuild(model, self._values)


def _rebuild(model: DistributedDataParallel, values: dict[str, Any]) -> None:
    """Makes a new reducer, which measures the order of gradients anew in its first backward."""
    for name, value in values.items():
        setattr(model, name, value)
    parameters, sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model.reducer._remove_autograd_hooks()
    model._ddp_init_helper(parameters, sparse, names, model.static_graph)
    model._comm_hooks = []
    model._has_rebuilt_buckets = False
    if model.static_graph:
        model._static_graph_delay_allreduce_enqueued = False
        model.reducer._set_static_graph()
        model.logger._set_static_graph()  # type: ignore[union-attr]
