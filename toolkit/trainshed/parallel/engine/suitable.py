"""Checks of what a model must be for its parameters to be given to ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from trainshed.base.errors import did_you_mean, shorten

from ..ground.errors import PipelineError

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "PipelineModel")


def check_kind(root: nn.Module) -> None:
    """To be called when the model is wrapped.

    Raises:
        PipelineError: it is divided among ranks by something else, or compiled as a whole.
    """
    if isinstance(root, torch.jit.ScriptModule):
        raise PipelineError(
            "the model is compiled by TorchScript as a whole, and cannot be cut",
            hint="wrap the model as it was before torch.jit.script, or compile its blocks one by one",
        )
    for name, module in root.named_modules():
        if type(module).__name__ in _WRAPPERS:
            raise PipelineError(
                f"{name or 'the model'} is wrapped in {type(module).__name__} already",
                hint="give the module inside of it: replicas, shards and stages are all set up here",
            )
    for name, parameter in root.named_parameters():
        if isinstance(parameter, DTensor):
            raise PipelineError(
                f"{name} is sharded over ranks already (FSDP2, tensor parallel)",
                hint="wrap the model before it is sharded; `sharded_data_parallel_degree` shards it without stages",
            )


def check_names(root: nn.Module, names: Iterable[str], where: str) -> None:
    """Raises:
    PipelineError: a setting names a module that the model does not have.
    """
    known = [name for name, _ in root.named_modules(remove_duplicate=False)]
    for name in names:
        if name not in known:
            raise PipelineError(
                f"{where}: the model has no module {shorten(repr(name))}",
                hint=did_you_mean(name, known) or "names are those of model.named_modules() before it is wrapped",
            )


def check_values(root: nn.Module) -> None:
    """To be called before the first step.

    Raises:
        PipelineError: a parameter or buffer has no values yet.
    """
    for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
        if is_lazy(tensor):
            raise PipelineError(
                f"{name} has no shape yet (a lazy module)",
                hint="run the model once on a batch, before it is wrapped and the optimizer is made",
            )
        if tensor.is_meta:
            raise PipelineError(
                f"{name} is on the meta device and has no values",
                hint="build the model on the CPU, or load_state_dict(state, assign=True) before the first step",
            )
