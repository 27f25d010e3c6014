"""A rule: a loss is above a limit."""

from __future__ import annotations

from trainshed.metrics.points import Point
from trainshed.studio.rules.rule import Rule, is_loss


class LossAbove(Rule):
    """A loss is above `limit`, after `patience` such values in a row."""

    parameters = {"limit": 100.0, "patience": 1.0}  # noqa: RUF012 (those of a job are given to __init__)

    def __init__(self, limit: float, patience: float) -> None:
        self.limit, self.patience = limit, patience
        self.above = 0

    def __call__(self, point: Point) -> str:
        """Says it, with the value."""
        if not is_loss(point.name):
            return ""
        self.above = self.above + 1 if point.value > self.limit else 0
        return f"{point.name} is {point.value:g}, above {self.limit:g}" if self.above >= self.patience else ""
