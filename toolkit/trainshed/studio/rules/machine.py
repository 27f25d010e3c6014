"""Rules on the machine and on the time of steps, judged by the samples of `train`.

Points of samples are called system/TYPE/DIMENSION/NAME (`system/gpu/GPUUtilization/gpu0`), those of steps `steps/seconds`.
"""

from __future__ import annotations

import statistics
from collections import deque

from .rule import Rule, percentile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.metrics.points import Point

_CPU = "system/cpu/CPUUtilization/cpus"
_WAIT = "system/i/o/I/OWaitPercentage/i/o"
_GPU = "system/gpu/GPUUtilization/"
_GPU_MEMORY = "system/gpu/GPUMemoryUsedPercent/"


class _OfWindow(Rule):
    """A rule on the last `window` samples of some curves, judged each time a window is full of new ones."""

    beginnings: tuple[str, ...] = ()

    def __init__(self, window: float) -> None:
        self._window = max(10, int(window))
        self._values: dict[str, deque[float]] = {}
        self._fresh = 0
        self._leading = ""

    def __call__(self, point: Point) -> str:
        if not point.name.startswith(self.beginnings):
            return ""
        self._values.setdefault(point.name, deque(maxlen=self._window)).append(point.value)
        self._leading = self._leading or point.name
        if point.name != self._leading:
            return ""
        self._fresh += 1
        if self._fresh < self._window:
            return ""
        self._fresh = 0
        return self.judge()

    def judge(self) -> str:
        """What is wrong in this window."""
        raise NotImplementedError

    def gpus(self, beginning: str = _GPU) -> dict[str, list[float]]:
        """The values of each GPU, by its name."""
        return {
            name.removeprefix(beginning): list(values) for name, values in self._values.items() if name.startswith(beginning)
        }

    def part(self, curve: str, above: float, gpus_below: float) -> float:
        """In how many per cent of the samples a curve is above one value and the busiest GPU, if any, below the other."""
        values = list(self._values.get(curve, ()))
        pairs = list(zip(values, self.busiest() or [-1.0] * len(values), strict=False))
        return 100 * sum(1 for value, gpu in pairs if value > above and gpu < gpus_below) / len(pairs) if pairs else 0.0

    def busiest(self) -> list[float]:
        """The utilisation of the busiest GPU at each sample; empty without GPUs."""
        return [max(together) for together in zip(*self.gpus().values(), strict=False)]


class CPUBottleneck(_OfWindow):
    """CPUs are busy and GPUs wait.

    In more than `threshold` per cent of the samples all CPUs together are above `cpu_threshold`, and the busiest GPU is
    below `gpu_threshold`.
    """

    beginnings = (_CPU, _GPU)

    def __init__(self, cpu_threshold: float, gpu_threshold: float, threshold: float, window: float) -> None:
        super().__init__(window)
        self._cpu, self._gpu, self._threshold = cpu_threshold, gpu_threshold, threshold

    def judge(self) -> str:
        part = self.part(_CPU, self._cpu, self._gpu)
        if not self.busiest() or part <= self._threshold:
            return ""
        return f"for {part:.0f} % of the time the CPUs are busy while the GPUs wait: do less on the CPU, or in advance"


class IOBottleneck(_OfWindow):
    """CPUs wait for disks, and GPUs for them.

    In more than `threshold` per cent of the samples the CPUs wait for more than `io_threshold` per cent of their time, and
    the busiest GPU, where there is one, is below `gpu_threshold`.
    """

    beginnings = (_WAIT, _GPU)

    def __init__(self, io_threshold: float, gpu_threshold: float, threshold: float, window: float) -> None:
        super().__init__(window)
        self._io, self._gpu, self._threshold = io_threshold, gpu_threshold, threshold

    def judge(self) -> str:
        part = self.part(_WAIT, self._io, self._gpu)
        if part <= self._threshold:
            return ""
        return f"for {part:.0f} % of the time the CPUs wait for disks: read ahead, or from a faster place"


class LowGPUUtilization(_OfWindow):
    """A GPU is hardly used: 95 % of its samples are below `threshold_p95`; unsteadily, if 5 % are below `threshold_p5`."""

    beginnings = (_GPU,)

    def __init__(self, threshold_p95: float, threshold_p5: float, window: float) -> None:
        super().__init__(window)
        self._high, self._low = threshold_p95, threshold_p5

    def judge(self) -> str:
        for name, values in self.gpus().items():
            high, low = percentile(values, 95), percentile(values, 5)
            if high < self._high:
                how = "unsteadily and " if low < self._low else ""
                return f"{name} is used {how}little: 95 % of the time at most {high:.0f} %"
        return ""


class GPUMemoryIncrease(_OfWindow):
    """The memory that a GPU uses has grown by more than `increase` per cent of it within a window, and grows still."""

    beginnings = (_GPU_MEMORY,)

    def __init__(self, increase: float, window: float) -> None:
        super().__init__(window)
        self._increase = increase
        self._windows = 0

    def judge(self) -> str:
        self._windows += 1
        if self._windows == 1:  # while a training starts, its memory grows
            return ""
        for name, values in self.gpus(_GPU_MEMORY).items():
            third = max(1, len(values) // 3)
            parts = [statistics.fmean(values[place : place + third]) for place in (0, third, 2 * third)]
            if parts[0] < parts[1] < parts[2] and parts[2] - parts[0] > self._increase:
                return f"the memory used of {name} grows: from {parts[0]:.0f} % to {parts[2]:.0f} %"
        return ""


class BatchSize(_OfWindow):
    """CPUs, GPUs and their memory are all below their thresholds for 95 % of the time: a larger batch fits."""

    beginnings = (_CPU, _GPU, _GPU_MEMORY)

    def __init__(
        self, cpu_threshold_p95: float, gpu_threshold_p95: float, gpu_memory_threshold_p95: float, window: float
    ) -> None:
        super().__init__(window)
        self._limits = (cpu_threshold_p95, gpu_threshold_p95, gpu_memory_threshold_p95)

    def judge(self) -> str:
        cpu, gpus, memory = list(self._values.get(_CPU, ())), self.gpus(), self.gpus(_GPU_MEMORY)
        if not (cpu and gpus and memory):
            return ""
        most = (
            percentile(cpu, 95),
            max(percentile(values, 95) for values in gpus.values()),
            max(percentile(values, 95) for values in memory.values()),
        )
        if any(value >= limit for value, limit in zip(most, self._limits, strict=True)):
            return ""
        cpus, busy, used = (f"{value:.0f} %" for value in most)
        return f"a larger batch fits: 95 % of the time CPUs use at most {cpus}, GPUs {busy} and {used} of their memory"


class LoadBalancing(_OfWindow):
    """One GPU is used more than another by a part of `threshold` of the busier one."""

    beginnings = (_GPU,)

    def __init__(self, threshold: float, window: float) -> None:
        super().__init__(window)
        self._threshold = threshold

    def judge(self) -> str:
        means = sorted((statistics.fmean(values), name) for name, values in self.gpus().items())
        if len(means) < 2 or means[-1][0] <= 0 or 1 - means[0][0] / means[-1][0] <= self._threshold:
            return ""
        (least, idle), (most, busy) = means[0], means[-1]
        return f"{busy} is used to {most:.0f} %, {idle} to {least:.0f} %: the work is not shared evenly"


class StepOutlier(Rule):
    """`n_outliers` steps took longer than usual by `stddev` standard deviations, and twice as long."""

    def __init__(self, stddev: float, n_outliers: float) -> None:
        self._far, self._most = stddev, n_outliers
        self._last: deque[float] = deque(maxlen=1000)
        self._found = 0

    def __call__(self, point: Point) -> str:
        if point.name != "steps/longest" or point.rank:
            return ""
        if len(self._last) >= 20:
            middle, spread = statistics.fmean(self._last), statistics.pstdev(self._last)
            if point.value > middle + self._far * spread and point.value > 2 * middle:
                self._found += 1
                if self._found >= self._most:
                    took = f"{point.value:.3g} s instead of {middle:.3g} s"
                    return f"{self._found} steps took far longer than the others, the last one {took}"
                return ""
        self._last.append(point.value)
        return ""


class MaxInitializationTime(Rule):
    """No step and no metric has come `threshold` minutes after the start."""

    def __init__(self, threshold: float) -> None:
        self._seconds = 60 * threshold
        self._start = 0.0
        self._begun = False

    def __call__(self, point: Point) -> str:
        self._begun = self._begun or not point.name.startswith("system/")
        return ""

    def tick(self, now: float) -> str:
        self._start = self._start or now
        if self._begun or now - self._start < self._seconds:
            return ""
        return f"nothing has been measured {(now - self._start) / 60:.0f} minutes after the start"
