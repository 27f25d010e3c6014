"""The model as the user's script holds it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trainshed.checkpoint.weights import SHARD_BYTES
from trainshed.contract.wire.variables import PIPELINE_BEGUN

from .clip import install
from .delayed.tape import Addresses
from .engine.offload import say_of_states
from .engine.suitable import check_kind, check_names
from .engine.tensor.divided_steps import TensorEngine
from .engine.tensor.joint_steps import JointEngine
from .engine.verify.after_gradients import AfterGradients
from .float8 import in_float8
from .full_model import on_first_rank
from .gather import gather_model, load_model
from .ground.errors import PipelineError
from .ground.halves import half_type, halve, widen
from .ground.shards import tensor_axis, whole
from .plan.plan_file import Plan
from .session import grid, session
from .stages.stage_holding import StageHolding
from .strategies import EngineRequest, engine_for
from .tracing.intercept import let_modules_move
from .tracing.naming import first_names
from .tracing.subject import Backward
from .weights import load_weights, save_pretrained, save_weights


class PipelineModel(nn.Module):
    """A model whose stages run on the ranks of a pipeline.

    All ranks build the same model on the CPU and wrap it; the first step plans, and from then on each rank holds the
    parameters of its own stages only (the others keep their shape and take no memory).

    Args:
        module: any model.
        overlapping_allreduce: sum gradients over replicas while the last microbatch's backward goes on.
        average_grads_across_microbatches: divide each microbatch's loss by their number.
        broadcast_buffers: before each training step replicas take the buffers of replica 0.
        bucket_cap_mb: MiB of gradients that are summed over replicas at once.

    Raises:
        PipelineError: `init` was not called, or the script has wrapped a model already.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        overlapping_allreduce: bool = True,
        average_grads_across_microbatches: bool = True,
        broadcast_buffers: bool = True,
        bucket_cap_mb: int = 25,
    ) -> None:
        super().__init__()
        if session.model is not None:
            raise PipelineError(
                "there is a PipelineModel already",
                hint="put all models that are trained into one nn.Module and wrap that; each step function calls the parts "
                "that it needs (model.module.part). A model that is not trained, like a teacher, needs no wrapping",
            )
        check_kind(module)
        check_names(module, grid().settings.atomic, "atomic")
        let_modules_move()
        if grid().settings.fp8:
            module = in_float8(module)
        _in_half(module)
        say_of_states(grid())
        self.module = module
        self.holding = StageHolding(module, grid())
        self._handler: Backward | None = None
        self._pins: dict[str, int] = {}
        self._post_step: list[Callable[[Any, Any], Any]] = []
        asked = EngineRequest(
            self.holding,
            self._attach,
            self._pins,
            overlap=overlapping_allreduce,
            average=average_grads_across_microbatches,
            buffers=broadcast_buffers,
            bucket_bytes=bucket_cap_mb * 2**20,
        )
        self.engine = engine_for(asked)
        self._read_pins()
        hook = module.register_forward_pre_hook(_within_steps)
        self.holding.when_partitioned(lambda: _put_first(module, hook))
        _tell_train()
        session.model = self
        session.holding = self.holding
        if grid().world > 1:
            session.after = AfterGradients(self.holding)
            self.holding.at_end = session.after.ended
        install()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward; outside a step, without gradients, that of all stages: collective over the pipeline.

        Raises:
            PipelineError: called outside a step with gradients, or the ranks have other inputs.
        """
        divided = self.partitioned and (
            isinstance(self.engine, TensorEngine)
            or self.holding.parts is not None
            or (self.holding.placement is not None and len(grid().pipeline_ranks) > 1)
        )
        if not divided or session.in_step or self._handler is not None or torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        session.in_step = True
        try:
            with self.engine.between_steps() if isinstance(self.engine, JointEngine) else nullcontext():
                return self.engine.run(_forward, [((self.module, *args), kwargs)]).results[0]
        finally:
            session.in_step = False

    def __deepcopy__(self, memo: Any) -> NoReturn:
        """Refused."""
        self._refuse_copy()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refused."""
        self._refuse_copy()

    def _refuse_copy(self) -> NoReturn:
        raise PipelineError(
            "a PipelineModel cannot be copied or pickled, for it is connected with other ranks",
            hint="before the first step copy model.module; later build the model again and load model.state_dict(), "
            "which all ranks call",
        )

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Instead of `loss.backward()`, inside a step function.

        Args:
            tensors: the loss, shape (), or several tensors.
            grad_tensors: gradients for tensors that are not scalars.

        Raises:
            PipelineError: called outside a step.
        """
        outputs = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        gradients = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or [])
        gradients += [None] * (len(outputs) - len(gradients))
        losses = [o if g is None else (o * g).sum() for o, g in zip(outputs, gradients, strict=True)]
        if self._handler is None:
            raise PipelineError("model.backward is called outside a step", hint="decorate the function with @step")
        self._handler.backward(losses)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module's own `generate` returns (that of transformers), on all ranks of the pipeline. Collective.

        The first rank runs the undivided model, to which the others lend what they hold: it needs room for all parameters.

        Raises:
            PipelineError: the module has none, it is called inside a step, or see `on_first_rank`.
        """
        native: Any = getattr(self.module, "generate", None)
        if not callable(native):
            raise PipelineError(f"{type(self.module).__name__} has no generate()")
        if session.in_step:
            raise PipelineError("model.generate() is called inside a step", hint="call it between steps, on all ranks")
        session.in_step = True
        try:
            if isinstance(self.engine, TensorEngine) and self.partitioned:
                with self.engine.gathered(), self.engine.between_steps():
                    return self.engine.run(_generate, [((self.module, *args), kwargs)]).results[0]
            if isinstance(self.engine, JointEngine):
                with self.engine.gathered():
                    return native(*args, **kwargs)
            if len(grid().pipeline_ranks) == 1 and not self.holding.exchanges:
                return native(*args, **kwargs)
            with self.holding.whole():
                return on_first_rank(self.holding, "generate", args, kwargs)
        finally:
            session.in_step = False

    # Plan ------------------------------------------------------------------------------------------------------------

    @property
    def partitioned(self) -> bool:
        """Tells whether the first step has given each rank its stages."""
        return self.holding.partitioned

    @property
    def plan(self) -> Plan | None:
        """The plan, from the first step on."""
        return self.engine.plan

    def use_plan(self, plan: Plan) -> None:
        """Takes a plan instead of making one; before the first step."""
        if self.partitioned:
            raise PipelineError("the model is partitioned already", hint="give the plan before the first step")
        self.engine.plan = plan

    def set_partition(self, module: nn.Module, stage: int) -> None:
        """Puts a module on a stage; before the first step."""
        if self.partitioned:
            raise PipelineError("the model is partitioned already", hint="call set_partition before the first step")
        for name, other in self.module.named_modules():
            if other is module:
                self._pins[name] = stage
                return
        raise PipelineError(f"{type(module).__name__} is not a part of the model")

    @property
    def _optimizer(self) -> Any:
        return session.optimizer

    def register_post_partition_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """`hook(model, optimizer)` runs when the model has been partitioned, or now if it has been."""
        self.holding.when_partitioned(lambda: hook(self, self._optimizer))

    def register_post_step_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """`hook(model, optimizer)` runs once, at the end of the next step."""
        self._post_step.append(hook)

    def stepped(self) -> None:
        """The end of a step."""
        hooks, self._post_step = self._post_step, []
        for hook in hooks:
            hook(self, self._optimizer)

    def _read_pins(self) -> None:
        settings = grid().settings
        known = first_names(self.module)
        if not settings.auto_partition and settings.default_partition is not None:
            for key, (_, stage) in session.built_in.items():
                if key in known:
                    self._pins[known[key]] = stage
            self._pins.setdefault("", settings.default_partition)

    def _attach(self, handler: Backward | None) -> None:
        vars(self)["_handler"] = handler  # for each microbatch: what a module does with any attribute takes long

    # Tensor parallelism ----------------------------------------------------------------------------------------------

    def distributed_modules(self) -> Iterator[nn.Module]:
        """Modules whose parameters are divided among the ranks of a tensor group; none before the first step."""
        holder = self.engine if isinstance(self.engine, TensorEngine) else self.holding.parts
        if holder is not None and holder.division is not None:
            yield from holder.division.divided

    def is_distributed_parameter(self, parameter: torch.Tensor) -> bool:
        """Returns whether this rank has a part of a parameter, as other ranks of its tensor group have others."""
        return tensor_axis(parameter) is not None

    # What this rank holds --------------------------------------------------------------------------------------------

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that this rank holds; names are those of the wrapped module."""
        yield from self.holding.parameters.items()

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that this rank holds."""
        yield from self.holding.parameters.values()

    def local_buffers(self) -> dict[str, torch.Tensor]:
        """Saved buffers of the modules that run on this rank, by name; all of them before the first step."""
        return self.holding.buffers()

    def local_state_dict(self) -> dict[str, Any]:
        """Parameters and buffers of this rank, with the key `_smp_is_partial`. Collective where they are sharded, for they
        are whole here."""
        return {**{name: whole(tensor) for name, tensor in self.holding.tensors().items()}, "_smp_is_partial": True}

    def state_dict(self, *args: Any, gather_to_rank0: bool = False, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The whole model on the CPU of every rank of the pipeline, with the names of the wrapped module. Collective.

        Args:
            gather_to_rank0: the other ranks get an empty dictionary.
        """
        if not self.partitioned:
            return dict(self.module.state_dict())
        return gather_model(self.holding, everywhere=not gather_to_rank0)

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:  # type: ignore[override]
        """Takes a whole or partial state; each rank keeps what it holds. Collective for a partial one."""
        return load_model(self.holding, state, strict)

    def save_weights(self, folder: str | os.PathLike[str], *, shard_bytes: int = SHARD_BYTES) -> None:
        """Writes the weights to safetensors files, each rank those of its stages; see `weights.save_weights`. Collective."""
        save_weights(self.holding, folder, shard_bytes)

    def load_weights(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Reads safetensors files, each rank what it holds or will hold; see `weights.load_weights`. Collective."""
        load_weights(self.holding, path, strict)

    def save_pretrained(self, folder: str | os.PathLike[str], *, shard_bytes: int = SHARD_BYTES) -> None:
        """Writes a folder that transformers' `from_pretrained` reads, stage by stage. Collective."""
        save_pretrained(self.holding, folder, shard_bytes)

    @contextmanager
    def join(self, *_args: Any, **_kwargs: Any) -> Iterator[None]:
        """For scripts that call it; replicas must have the same number of steps here."""
        yield

    def cpu(self) -> PipelineModel:
        """Parameters that this rank holds, on the CPU."""
        for parameter in self.local_parameters():
            parameter.data = parameter.data.cpu()
        return self


def _in_half(module: nn.Module) -> None:
    """Gives the parameters of a model the types that the job asks for."""
    settings = grid().settings
    kind = half_type(settings)
    if kind is None:
        return
    if settings.has_sharded_halves and settings.pipeline_parallel_degree == settings.tensor_parallel_degree == 1:
        with nullcontext() if session.tape is None else Addresses(session.tape), session.tape or nullcontext():
            widen(module)  # FSDP's shards are the masters, and what it gathers is in half precision
    elif session.tape is not None:
        with Addresses(session.tape), session.tape:
            halve(module, kind)
    else:
        halve(module, kind)


def _tell_train() -> None:
    """`train` learns that this script's ranks train one model."""
    if path := os.environ.get(PIPELINE_BEGUN):
        with suppress(OSError), open(path, "w"):
            pass


def _forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def _generate(module: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return module.generate(*args, **kwargs)


def _put_first(module: nn.Module, hook: RemovableHandle) -> None:
    """What refuses calls comes before what torch's FSDP does in one."""
    hook.remove()
    module.register_forward_pre_hook(_within_steps, prepend=True)


def _within_steps(module: nn.Module, _args: Any) -> None:
    """Before each forward of the user's module, by whatever name it is called.

    Raises:
        PipelineError: no step runs, and the call would use what is not here, or train without the other ranks.
    """
    model, here = session.model, session.grid
    if not isinstance(model, PipelineModel) or model.module is not module or here is None:
        return  # a copy of the module, or the pipeline was shut down
    if session.in_step or model._handler is not None or here.world == 1:
        return
    trains = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters())
    divided = here.settings.pipeline_parallel_degree > 1 or here.settings.tensor_parallel_degree > 1
    if trains or (model.partitioned and divided):
        raise PipelineError(
            "the model is called outside a step",
            hint="decorate the function with @step; for evaluation call model(x) or model.generate() itself (not those "
            "of model.module), on all ranks, under torch.no_grad()",
        )
