"""torch's LBFGS over a model of which each rank holds a part.

It moves all parameters along one line, and how far depends on the whole gradient: so every rank gets the whole gradient,
comes to the same line, and moves its own part along it. A rank then keeps vectors of the model's size, as many as twice
`history_size`. Replicas have the mean of their losses, for the search along the line must be the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .engine.holding import Holding
from .ground.errors import PipelineError, TorchLacks


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
    if not any(value is parameters for value in vars(optimizer).values()):
        raise TorchLacks(f"LBFGS of torch {torch.__version__} keeps its parameters in another way than this version knows")
    line = _Line(parameters, closure, holding)
    hook = optimizer.register_step_post_hook(lambda *_: line.end())
    hook.hooks_dict_ref().move_to_end(hook.id, last=False)  # type: ignore[union-attr]  # before those of the script
    try:
        return optimizer.step(line.evaluate)
    finally:
        hook.remove()
        line.end()


def _mean(loss: Any, holding: Holding) -> Any:
    grid = holding.grid
    if len(grid.replica_ranks) == 1:
        return loss
    total = torch.as_tensor(loss).detach().to(grid.device, copy=True)
    dist.all_reduce(total, group=grid.replica_group)
    return total / len(grid.replica_ranks)


class _Line:
    """The line that the optimizer moves along: one tensor in the place of its parameters, while no closure runs.

    It has the values of the parameters that are here, what the optimizer adds to those of others, and the whole gradient.

    Args:
        parameters: the optimizer's own list of them.
    """

    def __init__(self, parameters: list[torch.Tensor], closure: Callable[[], Any], holding: Holding) -> None:
        self._list, self._every = parameters, list(parameters)
        self._closure, self._holding = closure, holding
        self._point: nn.Parameter | None = None

    def evaluate(self) -> Any:
        """The script's closure, at the point where the optimizer is; the model may be partitioned in the first run."""
        self.end()
        loss = _mean(self._closure(), self._holding)
        gradient = self._gradient()
        with torch.no_grad():
            if self._point is None:
                self._point = nn.Parameter(torch.zeros_like(gradient))
                for piece, parameter in self._pieces(self._point):
                    piece.copy_(parameter)
        self._point.grad = gradient
        self._list[:] = [self._point]
        return loss

    def end(self) -> None:
        """The optimizer has its parameters again, and those that are here the values of the point."""
        self._list[:] = self._every
        if self._point is not None:
            with torch.no_grad():
                for piece, parameter in self._pieces(self._point):
                    parameter.copy_(piece)

    def _gradient(self) -> torch.Tensor:
        """That of all ranks."""
        grid, held = self._holding.grid, self._holding.parameters
        owned = {id(held[name]) for name in self._holding.owned_names()}
        views = [
            parameter.grad.to_dense().reshape(-1).to(parameter.dtype)
            if id(parameter) in owned and parameter.grad is not None
            else torch.zeros(parameter.numel(), dtype=parameter.dtype, device=grid.device)
            for parameter in self._every
        ]
        whole = torch.cat(views)
        if len(grid.pipeline_ranks) > 1:
            dist.all_reduce(whole, group=grid.pipeline_group)
        return whole

    def _pieces(self, point: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The places of a vector that belong to the parameters that are here, and these."""
        held = {id(parameter) for parameter in self._holding.parameters.values()}
        offset = 0
        for parameter in self._every:
            if id(parameter) in held:
                yield point[offset : offset + parameter.numel()].view_as(parameter), parameter
            offset += parameter.numel()
