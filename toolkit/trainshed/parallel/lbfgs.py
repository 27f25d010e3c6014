"""torch's LBFGS over a model of which each rank holds a part.

It moves all parameters along one line, and how far depends on the whole gradient: so every rank gets the whole gradient,
comes to the same line, and moves its own part along it. A rank then keeps vectors of the model's size, as many as twice
`history_size`. Replicas have the mean of their losses, for the search along the line must be the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .engine.holding import Holding
from .ground.errors import PipelineError


def refuse_state(optimizer: torch.optim.Optimizer, holding: Holding) -> None:
    """Raises:
    PipelineError: the optimizer is LBFGS, whose state belongs to no parameter, and the model has several stages.
    """
    if isinstance(optimizer, torch.optim.LBFGS) and len(holding.grid.pipeline_ranks) > 1:
        raise PipelineError(
            "the state of LBFGS belongs to all stages together, and cannot be saved or loaded",
            hint="save and load the model alone: LBFGS collects its history again",
        )


def step(optimizer: torch.optim.LBFGS, closure: Callable[[], Any], holding: Holding) -> Any:
    """One step of LBFGS. Collective; the model may be partitioned in the closure's first run.

    Returns:
        What the closure's first run has returned; the mean over replicas if there are some.

    Raises:
        PipelineError: parameters are sharded, complex, or not of the model.
    """
    settings = holding.grid.settings
    if max(settings.sharded_data_parallel_degree, settings.tensor_parallel_degree) > 1 or settings.shard_optimizer_state:
        raise PipelineError(
            "LBFGS needs whole gradients and states, and those of this job are sharded",
            hint="use another optimizer, or leave out sharded_data_parallel_degree, tensor_parallel_degree and "
            "shard_optimizer_state",
        )
    parameters = optimizer.param_groups[0]["params"]
    names = holding.names
    if any(id(parameter) not in names or parameter.is_complex() for parameter in parameters):
        raise PipelineError(
            "LBFGS has parameters that are complex or not the model's, and can only move the model's own real ones",
            hint="put them into the module that is wrapped, or give them to another optimizer",
        )
    with _divided(optimizer, parameters, holding):
        return optimizer.step(lambda: _mean(closure(), holding))


def _mean(loss: Any, holding: Holding) -> Any:
    grid = holding.grid
    if len(grid.replica_ranks) == 1:
        return loss
    total = torch.as_tensor(loss).detach().to(grid.device, copy=True)
    dist.all_reduce(total, group=grid.replica_group)
    return total / len(grid.replica_ranks)


@contextmanager
def _divided(optimizer: Any, parameters: list[torch.nn.Parameter], holding: Holding) -> Iterator[None]:
    """Within the block the optimizer reads gradients of all ranks, and writes the parameters of this one."""
    grid = holding.grid

    def gather() -> torch.Tensor:
        held = holding.parameters
        owned = {id(held[name]) for name in holding.owned_names()}
        views = [
            parameter.grad.to_dense().reshape(-1).to(parameter.dtype)
            if id(parameter) in owned and parameter.grad is not None
            else torch.zeros(parameter.numel(), dtype=parameter.dtype, device=grid.device)
            for parameter in parameters
        ]
        whole = torch.cat(views)
        if len(grid.pipeline_ranks) > 1:
            dist.all_reduce(whole, group=grid.pipeline_group)
        return whole

    def local() -> list[tuple[int, torch.nn.Parameter]]:
        held = {id(parameter) for parameter in holding.parameters.values()}
        found, offset = [], 0
        for parameter in parameters:
            if id(parameter) in held:
                found.append((offset, parameter))
            offset += parameter.numel()
        return found

    def add(length: float, direction: torch.Tensor) -> None:
        for offset, parameter in local():
            part = direction[offset : offset + parameter.numel()].view_as(parameter)
            parameter.add_(part.to(parameter.dtype), alpha=length)

    def put(values: list[torch.Tensor]) -> None:
        for (_, parameter), value in zip(local(), values, strict=True):
            parameter.copy_(value)

    ours: dict[str, Callable[..., Any]] = {
        "_gather_flat_grad": gather,
        "_add_grad": add,
        "_clone_param": lambda: [parameter.clone() for _, parameter in local()],
        "_set_param": put,
    }
    vars(optimizer).update(ours)
    try:
        yield
    finally:
        for name in ours:
            del vars(optimizer)[name]
