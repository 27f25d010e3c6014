"""What this process is doing: the grid, the model, overrides made before there was a model.

`planned`: in a process that only makes a plan, the settings that the plan is for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import PipelineError

if TYPE_CHECKING:
    import torch

    from trainshed.contract.wire.pipeline import Settings

    from .grid import Grid
    from .model import PipelineModel
    from .optimizer import PipelineOptimizer


@dataclass
class _Session:
    grid: Grid | None = None
    model: PipelineModel | None = None
    optimizer: PipelineOptimizer | None = None
    partition_stack: list[int] = field(default_factory=list)
    built_in: dict[int, tuple[torch.nn.Module, int]] = field(default_factory=dict)
    in_step: bool = False
    planned: Settings | None = None


session = _Session()


def grid() -> Grid:
    """The grid.

    Raises:
        PipelineError: `init` was not called.
    """
    if session.grid is None:
        raise PipelineError("the pipeline is not initialised", hint="call init() first")
    return session.grid
