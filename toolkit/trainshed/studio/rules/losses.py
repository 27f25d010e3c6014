"""Rules on metrics, above all on losses."""

from __future__ import annotations

import math
import statistics
from collections import deque

from .rule import Rule, is_loss, is_validation, mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.metrics.points import Point


_NO_METRICS = ("gradients/", "weights/", "outputs/", "updates/", "targets/", "system/", "steps/")
_NOISE = 4.0  # standard errors; less than that is chance


class _OfLosses(Rule):
    """A rule on training losses, each by itself; of several ranks the lowest counts, as in a curve."""

    def __init__(self) -> None:
        self._rank: dict[str, int] = {}

    def __call__(self, point: Point) -> str:
        if not is_loss(point.name) or is_validation(point.name) or not math.isfinite(point.value):
            return ""
        rank = -1 if point.rank is None else point.rank
        if rank > self._rank.setdefault(point.name, rank):
            return ""
        self._rank[point.name] = rank
        return self.loss(point)

    def loss(self, point: Point) -> str:
        """As a rule is called."""
        raise NotImplementedError


class LossNotDecreasing(_OfLosses):
    """The loss does not fall from the start, or rises again.

    Judged by means of `num_steps` values. It fires when the third mean is not `diff_percent` below the first one, or when
    a later one is above the least so far by `increase_threshold_percent` of the first one, and by more than chance, twice
    in a row. A loss that has fallen and stays where it is has converged: that is no finding.
    """

    def __init__(self, num_steps: float, diff_percent: float, increase_threshold_percent: float) -> None:
        super().__init__()
        self._count = max(1, int(num_steps))
        self._fall, self._rise = diff_percent / 100, increase_threshold_percent / 100
        self._values: dict[str, list[float]] = {}
        self._means: dict[str, list[float]] = {}
        self._above: dict[str, int] = {}

    def loss(self, point: Point) -> str:
        values = self._values.setdefault(point.name, [])
        values.append(point.value)
        if len(values) < self._count:
            return ""
        means = self._means.setdefault(point.name, [])
        means.append(mean(values))
        noise = statistics.pstdev(values) / math.sqrt(len(values))  # of such a mean
        values.clear()
        first, last, least = means[0], means[-1], min(means)
        if len(means) == 3 and last > first - self._fall * abs(first):
            return f"{point.name} does not decrease: its mean over {self._count} values was {first:.4g} and is {last:.4g}"
        above = last > least + max(self._rise * abs(first), _NOISE * noise) and len(means) > 1
        self._above[point.name] = self._above.get(point.name, 0) + 1 if above else 0
        if self._above[point.name] < 2:
            return ""
        return f"{point.name} rises: its mean over {self._count} values was {least:.4g} and is {last:.4g}"


class LossSpike(_OfLosses):
    """A value is twice the median of the last `num_steps`, and above it by `threshold` times their usual distance."""

    def __init__(self, num_steps: float, threshold: float) -> None:
        super().__init__()
        self._count, self._threshold = max(10, int(num_steps)), threshold
        self._last: dict[str, deque[float]] = {}

    def loss(self, point: Point) -> str:
        last = self._last.setdefault(point.name, deque(maxlen=self._count))
        found = ""
        if len(last) >= min(20, self._count):
            middle = statistics.median(last)
            usual = 1.4826 * statistics.median(abs(value - middle) for value in last)
            if point.value > middle + self._threshold * usual and point.value > 2 * abs(middle) and usual > 0:
                found = f"{point.name} was {point.value:.4g}; of the {len(last)} values before, the median is {middle:.4g}"
        last.append(point.value)
        return found


class NotFinite(Rule):
    """A metric is NaN or infinite."""

    def __call__(self, point: Point) -> str:
        if math.isfinite(point.value) or point.name.startswith(_NO_METRICS):
            return ""
        return f"{point.name} is {point.value}"


class Overfit(Rule):
    """The validation loss is above the training loss by more than `ratio_threshold`, and rises while that falls.

    It fires after more than `patience` such values of the validation loss in a row.
    """

    def __init__(self, ratio_threshold: float, patience: float) -> None:
        self._ratio, self._patience = ratio_threshold, patience
        self._train: list[float] = []  # since the last validation
        self._means: list[float] = []
        self._least = math.inf
        self._times = 0
        self._names = ("", "")  # of the losses that are compared

    def __call__(self, point: Point) -> str:
        if not is_loss(point.name) or not math.isfinite(point.value) or point.rank:
            return ""
        train, validation = self._names
        if not is_validation(point.name):
            self._names = (train or point.name, validation)
            if point.name == self._names[0]:
                self._train.append(point.value)
            return ""
        self._names = (train, validation or point.name)
        if point.name != self._names[1] or not self._train:
            return ""
        self._means.append(mean(self._train))
        self._train.clear()
        own, falls = self._means[-1], len(self._means) > 1 and self._means[-1] < self._means[-2]
        bad = own > 0 and (point.value - own) / own > self._ratio and point.value > self._least and falls
        self._times = self._times + 1 if bad else 0
        self._least = min(self._least, point.value)
        if self._times <= self._patience:
            return ""
        return (
            f"{point.name} is {point.value:.4g} and was {self._least:.4g}, while {train} has fallen to {own:.4g}: "
            "the model learns its training data by heart"
        )


class Overtraining(Rule):
    """Neither loss improves any more.

    It fires when the validation loss has not fallen by a part of `delta` for `patience_validation` values, and the training
    loss, as its mean between two validations, for `patience_train`.
    """

    def __init__(self, patience_train: float, patience_validation: float, delta: float) -> None:
        self._patience = (patience_train, patience_validation)
        self._delta = delta
        self._train: list[float] = []
        self._least = [math.inf, math.inf]
        self._since = [0, 0]

    def __call__(self, point: Point) -> str:
        if not is_loss(point.name) or not math.isfinite(point.value) or point.rank:
            return ""
        if not is_validation(point.name):
            self._train.append(point.value)
            return ""
        if self._train:
            self._note(0, mean(self._train))
            self._train.clear()
        self._note(1, point.value)
        if any(since < patience for since, patience in zip(self._since, self._patience, strict=True)):
            return ""
        train, validation = self._since
        return f"{point.name} has not improved for {validation} values, nor the training loss for {train}: stop earlier"

    def _note(self, which: int, value: float) -> None:
        if value < self._least[which] - self._delta * abs(self._least[which]) or self._least[which] == math.inf:
            self._least[which], self._since[which] = value, 0
        else:
            self._since[which] += 1


class StalledTraining(Rule):
    """No metric has come for `threshold` seconds, though there were some before."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._last = 0.0

    def __call__(self, point: Point) -> str:
        if not point.name.startswith("system/"):
            self._last = max(self._last, point.time)
        return ""

    def tick(self, now: float) -> str:
        if not self._last or now - self._last < self._threshold:
            return ""
        return f"no metric has come for {now - self._last:.0f} s"
