"""`smp.DistributedModel` and what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainshed.parallel import GradScaler, PipelineModel, PipelineOptimizer, clip_grad_norm_
from trainshed.parallel.ground.errors import NotServed
from trainshed.parallel.session import grid, session
from trainshed.parallel.start import delayed_initialization
from trainshed.parallel.start import tensor_parallelism as _marking

from . import transformers_support
from .scaling import DynamicScaler, StaticScaler, scale_rules


class DistributedModel(PipelineModel):
    """The user's model; the arguments that concern tracing on a GPU have no effect.

    Args:
        module: any model.
        average_grads_across_microbatches, overlapping_allreduce, bucket_cap_mb, broadcast_buffers: as in PipelineModel.

    Wrapping the same module again gives the same object: transformers' Trainer does so to evaluate.
    """

    def __new__(cls, module: nn.Module, *_args: Any, **_kwargs: Any) -> DistributedModel:
        """The model that wraps `module` already, or a new one."""
        if isinstance(session.model, cls) and session.model.module is module:
            return session.model
        return super().__new__(cls)

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: int = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        **unknown: Any,
    ) -> None:
        if session.model is self:
            return
        if unknown:
            raise NotServed(f"DistributedModel({next(iter(unknown))}=...) is not supported")
        transformers_support.apply()
        super().__init__(
            module,
            overlapping_allreduce=overlapping_allreduce,
            average_grads_across_microbatches=average_grads_across_microbatches,
            broadcast_buffers=broadcast_buffers,
            bucket_cap_mb=bucket_cap_mb,
        )

    def get_module(self) -> nn.Module:
        """The user's module."""
        return self.module

    def local_modules(self) -> Iterator[nn.Module]:
        """Modules that this rank runs."""
        yield from (module for _, module in self.local_named_modules())

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Names and modules that have parameters here."""
        held = {id(parameter) for parameter in self.local_parameters()}
        for name, module in self.module.named_modules():
            if any(id(parameter) in held for parameter in module.parameters()):
                yield name, module

    def local_named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and buffers of modules that this rank runs."""
        yield from self.local_buffers().items()

    def register_comm_hook(self, *_args: Any, **_kwargs: Any) -> None:
        """Not served."""
        raise NotServed("register_comm_hook is not supported", hint="gradients are summed in their own type")


class DistributedOptimizer(PipelineOptimizer):
    """The user's optimizer. With `fp16` in the settings the loss is scaled: by a scale that adjusts itself, unless a static
    one is given. Sharded gradients are clipped to a norm of 1 in a step, unless `sdp_gradient_clipping` says something else.

    Args:
        dynamic_loss_args: see `scaling.ScaleRules`, whose fields are its keys.

    Raises:
        PipelineError: an option of the loss scale has no such name, or cannot have this value.
    """

    _unless_given = 1.0

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: dict[str, Any] | None = None,
        **loss_options: Any,
    ) -> None:
        rules = scale_rules({**(dynamic_loss_args or {}), **loss_options})
        scaler: GradScaler | None = None
        if session.grid is not None and session.grid.settings.fp16:
            static = static_loss_scale not in (None, 1.0) and not dynamic_loss_scale
            scaler = StaticScaler(init_scale=static_loss_scale) if static else DynamicScaler(rules)
        super().__init__(optimizer, scaler)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips by the norm over all stages; returns it, shape ()."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return clip_grad_norm_(parameters, max_norm, norm_type)

    def update_master_grads(self) -> None:
        """Takes the loss scale out of the gradients: parameters are their own master copies here."""
        self.unscale()

    def save_optimizer_backcompat(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """State of this rank's parameters."""
        return self.local_state_dict(gather_if_shard)


def set_partition(module: nn.Module, stage: int) -> None:
    """Puts a module on a stage; after wrapping, before the first step."""
    if not isinstance(session.model, PipelineModel):
        raise NotServed("set_partition is called before the model is wrapped", hint="call it after DistributedModel(...)")
    session.model.set_partition(module, stage)


def set_activation_checkpointing(
    module: nn.Module, preserve_rng_state: bool = True, pack_args_as_tuple: bool = False, strategy: str = "each"
) -> None:
    """Keeps only the module's inputs for the backward and runs it again there.

    Args:
        strategy: for an nn.Sequential: "each" child, "contiguous" (all at once), or "group_N". An nn.ModuleList, which has
            no forward of its own: each child.
    """
    if not isinstance(module, (nn.Sequential, nn.ModuleList)) or (
        strategy == "contiguous" and isinstance(module, nn.Sequential)
    ):
        _checkpointed(module, preserve_rng_state)
        return
    for child in module:  # a group costs more memory and is otherwise the same
        _checkpointed(child, preserve_rng_state)


def _checkpointed(module: nn.Module, preserve_rng_state: bool) -> None:
    native: Callable[..., Any] = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return native(*args, **kwargs)
        return checkpoint(native, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs)

    module.forward = forward  # type: ignore[method-assign]


@contextmanager
def model_creation(tensor_parallelism: bool = False, **_options: Any) -> Iterator[None]:
    """Builds a model as it is, in its own types; without values, if the setting `delayed_parameter_initialization` says so.

    Args:
        tensor_parallelism: marks its modules as ones to divide: they are divided as they are, and not replaced by others.

    Raises:
        NotServed: the script expects them to be divided, and the job does not ask for it.
    """
    settings = grid().settings
    if tensor_parallelism and settings.tensor_parallel_degree == 1:
        raise NotServed(
            "model_creation(tensor_parallelism=True) is not supported without tensor_parallel_degree: it divides modules",
            hint="set tensor_parallel_degree, or pass False; AWS's GPT scripts do so with the hyperparameter "
            "use_distributed_transformer=0",
        )
    marking = _marking() if tensor_parallelism else nullcontext()
    with delayed_initialization(settings.delayed_parameter_initialization), marking:
        yield


@contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Builds a model whose parameters get their values in the first step, each on its own rank."""
    with delayed_initialization(enabled):
        yield
