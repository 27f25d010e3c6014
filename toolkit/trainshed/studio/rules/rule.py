"""What every rule is: called with each point, returns a sentence when it fires."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.metrics.points import Point

_VALIDATION = re.compile(r"(^|[^a-z])(val|valid|validation|eval|evaluation|test|dev)([^a-z]|$)")
_LOSS = re.compile(r"(^|[^a-z])loss([^a-z]|$)")
_NOT_A_LOSS = re.compile(r"scale|weight|runtime|per_second")


class Rule:
    """A rule. It keeps what it needs of earlier points, and fires at most once."""

    def __call__(self, point: Point) -> str:
        """What is wrong, with the numbers that show it; "" where nothing is."""
        raise NotImplementedError

    def tick(self, now: float) -> str:
        """The same at a time, in seconds since 1970, at which no point need have come."""
        return ""


def is_loss(name: str) -> bool:
    """Whether a metric is a loss by its name: `loss`, `train_loss`, `val/loss`."""
    return bool(_LOSS.search(name.lower().replace("_", " "))) and not _NOT_A_LOSS.search(name.lower())


def is_validation(name: str) -> bool:
    """Whether a metric was measured on data that the model is not trained with, by its name."""
    return bool(_VALIDATION.search(name.lower().replace("_", " ")))


def mean(values: list[float]) -> float:
    """Their mean; there is at least one."""
    return sum(values) / len(values)


def percentile(values: list[float], part: float) -> float:
    """The value below which that part (0 to 100) of them lies, by the nearest rank; there is at least one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part / 100))]
