"""Rules on tensors, judged by the numbers that `collecting` takes of them.

Their points are called COLLECTION/NUMBER/NAME: `gradients/mean/encoder.weight`. docs/rules.md lists them.
"""

from __future__ import annotations

import math

from .rule import Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.metrics.points import Point


class _OfTensors(Rule):
    """A rule on one kind of number. It fires after `patience` points of one tensor in a row that are bad."""

    numbers: tuple[str, ...] = ()  # beginnings of points' names

    def __init__(self, patience: float = 1) -> None:
        self._patience = patience
        self._times: dict[tuple[str, int | None], int] = {}

    def __call__(self, point: Point) -> str:
        number = next((number for number in self.numbers if point.name.startswith(number)), "")
        if not number:
            return ""
        tensor = point.name.removeprefix(number)
        found = self.bad(number, tensor, point)
        key = point.name, point.rank
        self._times[key] = self._times.get(key, 0) + 1 if found else 0
        return found if self._times[key] >= self._patience else ""

    def bad(self, number: str, tensor: str, point: Point) -> str:
        """What is wrong with this number, "" if nothing is."""
        raise NotImplementedError


class VanishingGradient(_OfTensors):
    """The mean size of a gradient's elements is below `threshold`, and the greatest is not ten times that; not all are 0."""

    numbers = ("gradients/mean/", "gradients/max/")

    def __init__(self, threshold: float, patience: float) -> None:
        super().__init__(patience)
        self._threshold = threshold
        self._most: dict[tuple[str, int | None], float] = {}

    def bad(self, number: str, tensor: str, point: Point) -> str:
        if number == "gradients/max/":
            self._most[tensor, point.rank] = point.value
            return ""
        most = self._most.get((tensor, point.rank), 0.0)
        if not 0 < point.value < self._threshold or most >= 10 * self._threshold:
            return ""
        return f"the gradient of {tensor} vanishes: its elements have a mean size of {point.value:.2g}"


class ExplodingTensor(_OfTensors):
    """A weight, a gradient or an output has an element that is NaN or infinite."""

    numbers = ("gradients/max/", "weights/max/", "outputs/max/")

    def bad(self, number: str, tensor: str, point: Point) -> str:
        if math.isfinite(point.value):
            return ""
        of = {"gradients/max/": "the gradient of ", "outputs/max/": "the output of "}.get(number, "")
        return f"{of}{tensor} has elements that are NaN or infinite"


class WeightUpdateRatio(_OfTensors):
    """A step changes a weight by more than `large_threshold` times its size, or by less than `small_threshold` of it.

    Too much fires at once, too little after `patience` looks. Weights that are 0 have no such ratio.
    """

    numbers = ("updates/ratio/",)

    def __init__(self, large_threshold: float, small_threshold: float, patience: float) -> None:
        super().__init__(patience)
        self._large, self._small = large_threshold, small_threshold

    def __call__(self, point: Point) -> str:
        if point.name.startswith(self.numbers) and point.value > self._large:
            tensor = point.name.removeprefix(*self.numbers)
            return f"a step changes {tensor} by {point.value:.3g} times its size: the learning rate is too high"
        return super().__call__(point)

    def bad(self, number: str, tensor: str, point: Point) -> str:
        if point.value >= self._small:
            return ""
        return f"a step changes {tensor} by {point.value:.2g} of its size: the learning rate is too low"


class UnchangedTensor(_OfTensors):
    """A weight that is to be trained gets no update: it has no gradient, or no optimizer has it."""

    numbers = ("weights/left/",)

    def bad(self, number: str, tensor: str, point: Point) -> str:
        if not point.value:
            return ""
        return f"{tensor} is to be trained but never changes: it has no gradient, or no optimizer has it"


class AllZero(_OfTensors):
    """All elements of a gradient, or of an output, are 0."""

    numbers = ("gradients/mean/", "outputs/max/")

    def bad(self, number: str, tensor: str, point: Point) -> str:
        what = "gradient" if number.startswith("gradients") else "output"
        return f"all elements of the {what} of {tensor} are 0" if point.value == 0 else ""


class PoorWeightInitialization(_OfTensors):
    """Before the first step, a linear or convolutional layer multiplies the size of its input too much or too little.

    Its gain is the standard deviation of its weight times the root of how many inputs each output has: above
    `threshold`, below `distribution_range` without being 0, or exactly 0 while the elements are not (all are alike).
    """

    numbers = ("weights/gain/", "weights/alike/")

    def __init__(self, threshold: float, distribution_range: float) -> None:
        super().__init__()
        self._threshold, self._range = threshold, distribution_range
        self._seen: set[tuple[str, int | None]] = set()

    def bad(self, number: str, tensor: str, point: Point) -> str:
        if (point.name, point.rank) in self._seen:
            return ""
        self._seen.add((point.name, point.rank))
        if number == "weights/alike/":
            return (
                f"all elements of {tensor} are alike at the start, so all its outputs learn the same" if point.value else ""
            )
        if point.value > self._threshold:
            return f"{tensor} starts with a gain of {point.value:.3g}: each such layer makes its input that much larger"
        if 0 < point.value < self._range:
            return f"{tensor} starts with a gain of {point.value:.2g}: nothing of its input is left behind such layers"
        return ""


class _OfLayers(_OfTensors):
    """A rule on how many per cent of a layer are of no use."""

    what = ""

    def __init__(self, threshold_layer: float, patience: float) -> None:
        super().__init__(patience)
        self._threshold = threshold_layer

    def bad(self, number: str, tensor: str, point: Point) -> str:
        return f"{point.value:.0f} % of {tensor} {self.what}" if point.value > self._threshold else ""


class DeadRelu(_OfLayers):
    """More than `threshold_layer` per cent of the units of a ReLU give 0 for all that they are given."""

    numbers = ("outputs/dead_percent/",)
    what = "is dead: these units give 0 for every sample"


class SaturatedActivation(_OfLayers):
    """More than `threshold_layer` per cent of the outputs of a tanh or sigmoid lie where it is flat."""

    numbers = ("outputs/saturated_percent/",)
    what = "is saturated: hardly any gradient passes"


class ClassImbalance(Rule):
    """Of the classes in the targets of a cross-entropy, one has `threshold_imbalance` times as many samples as another.

    Judged once, after `samples` targets.
    """

    def __init__(self, threshold_imbalance: float, samples: float) -> None:
        self._threshold, self._samples = threshold_imbalance, samples
        self._counts: dict[str, float] = {}
        self._over = False

    def __call__(self, point: Point) -> str:
        if self._over or not point.name.startswith("targets/count/"):
            return ""
        name = point.name.removeprefix("targets/count/")
        self._counts[name] = self._counts.get(name, 0.0) + point.value
        if sum(self._counts.values()) < self._samples or len(self._counts) < 2:
            return ""
        self._over = True
        ordered = sorted(self._counts.items(), key=lambda item: item[1])
        (few, least), (many, most) = ordered[0], ordered[-1]
        if most <= self._threshold * least:
            return ""
        return f"of {sum(self._counts.values()):.0f} targets {most:.0f} are of class {many} and {least:.0f} of class {few}"


class RankDivergence(Rule):
    """Ranks that train one model in common no longer have the same weights."""

    def __init__(self) -> None:
        self._sums: dict[int | None, dict[int, float]] = {}

    def __call__(self, point: Point) -> str:
        if point.name != "weights/sum" or point.rank is None:
            return ""
        sums = self._sums.setdefault(point.step, {})
        sums[point.rank] = point.value
        while len(self._sums) > 100:
            del self._sums[next(iter(self._sums))]
        if len(set(sums.values())) < 2 or point.value != point.value:
            return ""
        first = min(sums)
        other = next(rank for rank, value in sums.items() if value != sums[first])
        return f"ranks {first} and {other} no longer have the same weights at step {point.step}"
