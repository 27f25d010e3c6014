"""This rank's part of a model whose stages may be divided further."""

from __future__ import annotations

from torch import nn

from ..engine.context.stage_blocks import StageBlocks
from ..engine.exchange import Exchange
from ..engine.holding import Holding
from ..ground.grid import Grid
from .stage_parts import StageParts


class StageHolding(Holding):
    """Adds to `Holding` what divides the modules of stages.

    parts: where their modules are divided.
    blocks: where sequences are, inside of their blocks.
    """

    def __init__(self, root: nn.Module, grid: Grid) -> None:
        super().__init__(root, grid)
        self.parts: StageParts | None = None
        self.blocks: StageBlocks | None = None

    @property
    def exchanges(self) -> list[Exchange]:
        """Between whole parameters and what this rank holds of them, in the order in which they were cut."""
        return [*([] if self.parts is None else [self.parts]), *super().exchanges]
