"""The model as the user's script holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .clip import install_clipping
from .engine.sharded import ShardedEngine
from .engine.steps import Engine
from .errors import PipelineError
from .plan.plan_file import Plan
from .record.subject import Backward
from .session import grid, session


class PipelineModel(nn.Module):
    """A model whose stages run on the ranks of a pipeline.

    All ranks build the same model on the CPU and wrap it; the first step plans, and from then on each rank holds the
    parameters of its own stages only (the others are shown with their shape and take no memory).

    Args:
        module: any model.
        overlapping_allreduce: sum gradients over replicas while the last microbatch's backward goes on.
        average_grads_across_microbatches: divide each microbatch's loss by their number.
        broadcast_buffers: before each training step replicas take the buffers of replica 0.
        bucket_cap_mb: MiB of gradients that are summed over replicas at once.
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
            raise PipelineError("there is a PipelineModel already: one for each script")
        self.module = module
        self._handler: Backward | None = None
        self._pins: dict[str, int] = {}
        self._post_partition: list[Callable[[Any, Any], Any]] = []
        self._post_step: list[Callable[[Any, Any], Any]] = []
        self.engine: Engine | ShardedEngine
        average, buffers = average_grads_across_microbatches, broadcast_buffers
        if grid().settings.sharded_data_parallel_degree > 1:
            self.engine = ShardedEngine(grid(), module, self._attach, average=average, buffers=buffers)
        else:
            self.engine = Engine(
                grid(),
                module,
                self._attach,
                pins=self._pins,
                average=average,
                overlap=overlapping_allreduce,
                buffers=buffers,
                bucket_bytes=bucket_cap_mb * 2**20,
            )
        self.engine.on_partition.append(self._partitioned)
        self._read_pins()
        session.model = self
        install_clipping()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward.

        Raises:
            PipelineError: called outside a step, where the other stages would not take part.
        """
        if (
            self._handler is None
            and not session.in_step
            and self.partitioned
            and grid().settings.pipeline_parallel_degree > 1
        ):
            raise PipelineError("the model is called outside a step", hint="decorate the function with @step")
        return self.module(*args, **kwargs)

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Instead of `loss.backward()`, inside a step function.

        Args:
            tensors: the loss, shape (), or several tensors.
            grad_tensors: gradients for tensors that are no scalars.
        """
        outputs = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        gradients = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or [])
        gradients += [None] * (len(outputs) - len(gradients))
        losses = [o if g is None else (o * g).sum() for o, g in zip(outputs, gradients, strict=True)]
        if self._handler is None:
            raise PipelineError("model.backward is called outside a step", hint="decorate the function with @step")
        self._handler.backward(losses)

    # Plan ------------------------------------------------------------------------------------------------------------

    @property
    def partitioned(self) -> bool:
        """Whether the first step has been."""
        return self.engine.partitioned

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
        raise PipelineError(f"{type(module).__name__} is no part of the model")

    @property
    def _optimizer(self) -> Any:
        return session.optimizer

    def register_post_partition_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """`hook(model, optimizer)` runs when the model has been partitioned, or now if it has been."""
        if self.partitioned:
            hook(self, self._optimizer)
        else:
            self._post_partition.append(hook)

    def register_post_step_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """`hook(model, optimizer)` runs once, at the end of the next step."""
        self._post_step.append(hook)

    def stepped(self) -> None:
        """The end of a step."""
        hooks, self._post_step = self._post_step, []
        for hook in hooks:
            hook(self, self._optimizer)

    def _partitioned(self) -> None:
        for hook in self._post_partition:
            hook(self, self._optimizer)
        self._post_partition.clear()

    def _read_pins(self) -> None:
        settings = grid().settings
        known = {id(module): name for name, module in reversed(list(self.module.named_modules()))}
        if not settings.auto_partition and settings.default_partition is not None:
            for key, (_, stage) in session.built_in.items():
                if key in known:
                    self._pins[known[key]] = stage
            self._pins.setdefault("", settings.default_partition)

    def _attach(self, handler: Backward | None) -> None:
        self._handler = handler

    # What this rank holds --------------------------------------------------------------------------------------------

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that this rank holds; names are those of the wrapped module."""
        yield from self.engine.parameters.items()

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that this rank holds."""
        yield from self.engine.parameters.values()

    def owned_names(self) -> list[str]:
        """Parameters that this rank answers for: each belongs to exactly one rank of a pipeline."""
        if self.engine.placement is None:
            return list(self.engine.parameters)
        return self.engine.placement.owned(grid().place.pipeline)

    def buffer_owners(self) -> dict[str, int]:
        """Saved buffers -> the pipeline rank that runs their module (rank 0 for those of modules that never run)."""
        parameters = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        saved = set(self.module.state_dict(keep_vars=True)) - parameters
        degree = grid().settings.pipeline_parallel_degree
        first: dict[str, int] = {}
        for unit in self.engine.plan.units if self.engine.plan is not None else ():
            first.setdefault(unit.unit, unit.stage % degree)

        def home(name: str) -> int:
            parts = name.split(".")
            around = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            return next((first[module] for module in around if module in first), 0)

        return {name: home(name) for name, _ in self.module.named_buffers() if name in saved}

    def local_buffers(self) -> dict[str, torch.Tensor]:
        """Saved buffers of the modules that run on this rank, by name; all of them before the first step."""
        owners = self.buffer_owners()
        mine = grid().place.pipeline
        return {
            name: buffer
            for name, buffer in self.module.named_buffers()
            if name in owners and (not self.partitioned or owners[name] == mine)
        }

    def local_state_dict(self) -> dict[str, Any]:
        """Parameters and buffers of this rank, with the key `_smp_is_partial`."""
        state: dict[str, Any] = {name: parameter.detach() for name, parameter in self.local_named_parameters()}
        state.update(self.local_buffers())
        state["_smp_is_partial"] = True
        return state

    def state_dict(self, *args: Any, gather_to_rank0: bool = False, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The whole model on the CPU of every rank of the pipeline, with the names of the wrapped module. Collective.

        Args:
            gather_to_rank0: the other ranks get an empty dictionary.
        """
        if not self.partitioned:
            return dict(self.module.state_dict())
        from .gather import gather_model

        return gather_model(self, everywhere=not gather_to_rank0)

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:  # type: ignore[override]
        """Takes a whole or partial state; each rank keeps what it holds."""
        from .gather import load_model

        return load_model(self, state, strict)

    @contextmanager
    def join(self, *_args: Any, **_kwargs: Any) -> Iterator[None]:
        """For scripts that call it; replicas must have the same number of steps here."""
        yield

    def cpu(self) -> PipelineModel:
        """Parameters that this rank holds, on the CPU."""
        for parameter in self.local_parameters():
            parameter.data = parameter.data.cpu()
        return self


def barrier(group: dist.ProcessGroup | None = None) -> None:
    """Waits for all ranks of `group`."""
    if dist.get_world_size(group) > 1:
        dist.barrier(group)
