"""Optimizers that do something else to a part of a parameter than to the whole one.

One that takes `to_local()` of a DTensor and goes by blocks, rows or norms of it goes by those of this rank's part: states
in 8 bits with a scale for each block, mostly. That is tried before its first step, with a parameter as it is divided, and
whole on each rank. Where the two become something else after two steps, the optimizer is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from .engine.remote_parameters import AbsentParameter
from .ground.errors import PipelineError
from .ground.shards import whole
from .mixing import stepping

# Numbers of a parameter that is tried, at most, for it is whole on each rank; and parts of an update that rounding explains.
_MOST, _ROUNDING = 1 << 24, 1e-4
_STEPS = 2  # the second one reads the state that the first one has made


def refuse_local(optimizer: torch.optim.Optimizer) -> bool:
    """Before a step of an optimizer that is not torch's own. Collective where parameters are divided.

    Returns:
        Whether there was something to try.

    Raises:
        PipelineError: it does something else to a part of a parameter.
    """
    if type(optimizer).__module__.startswith("torch.optim."):
        return True
    for group, parameter in _kinds(optimizer):
        wide = [Replicate()] * parameter.device_mesh.ndim
        try:
            first, again, parted = (
                _updated(optimizer, group, parameter, list(placements), seed)
                for placements, seed in ((wide, 0), (wide, 1), (parameter.placements, 0))
            )
        except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError):
            continue  # its own step says it, in words
        if not _close(first, again):
            continue  # it draws numbers, and others in each part
        if not _close(parted, first):
            raise PipelineError(
                f"{type(optimizer).__name__} does something else to a part of a parameter than to the whole one (it goes by "
                "blocks, rows or norms of to_local())",
                hint="another optimizer, or one without states in blocks; or leave out tensor_parallel_degree and "
                "sharded_data_parallel_degree",
            )
    return any(one.grad is not None for group in optimizer.param_groups for one in _known(group))


def _known(group: dict[str, Any]) -> list[torch.Tensor]:
    return [one for one in group["params"] if not isinstance(one, AbsentParameter)]


def _kinds(optimizer: torch.optim.Optimizer) -> list[tuple[int, Any]]:
    """One parameter of each shape and way in which it is divided, with the number of its group."""
    found: dict[Any, tuple[int, Any]] = {}
    for number, group in enumerate(optimizer.param_groups):
        for one in _known(group):
            if isinstance(one, DTensor) and one.grad is not None and 0 < one.numel() <= _MOST:
                found.setdefault((number, one.shape, one.dtype, one.placements), (number, one))
    return list(found.values())


def _updated(optimizer: torch.optim.Optimizer, group: int, parameter: Any, placements: list[Any], seed: int) -> Any:
    """What two steps add to a parameter."""
    made = nn.Parameter(parameter.detach().redistribute(placements=placements).clone())
    made.grad = parameter.grad.redistribute(placements=placements).clone()
    given = [[made] if number == group else [] for number in range(len(optimizer.param_groups))]
    with stepping(optimizer, given, fresh=True) as step:
        torch.manual_seed(seed)
        for _ in range(_STEPS):
            step()
        return whole(made.detach()) - whole(parameter.detach())


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    length = float(other.double().norm())
    return not float((one.double() - other.double()).norm()) > _ROUNDING * length
