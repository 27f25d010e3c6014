"""Which of a run's samples are shown, and in which charts: for reports and for the web page."""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.observe.system import Curves

    Points = list[tuple[float, float]]

_MEGA = 1e-6
_RATES = {"Re": ("in", "read"), "Tr": ("out", "out"), "Wr": ("written", "written")}


class MachineChart(Record):
    """One chart. lines: (time in seconds since 1970, value) by name. scale: what values are multiplied by.

    most: the end of its axis, None for what the values need; it begins at 0.
    """

    title: str
    lines: dict[str, Points]
    scale: float = 1.0
    most: float | None = None


def machine_charts(curves: Curves) -> list[MachineChart]:
    """The charts of the machines that were sampled; those without a line are left out."""
    several = len({node for node, *_ in curves}) > 1

    def named(node: str, name: str) -> str:
        return f"{node} {name}".strip() if several else name or node

    def of(kind: str, dimension: str, name: Callable[[str], bool] = lambda _: True, called: str = "") -> dict[str, Points]:
        return {
            named(node, called or what): points
            for (node, group, what, measured), points in sorted(curves.items())
            if group == kind and measured == dimension and name(what)
        }

    charts = [
        MachineChart("CPU, % of all cores", of("cpu", "CPUUtilization", _is_all_cores, "all cores"), most=100.0),
        MachineChart("Memory, %", of("memory", "MemoryUsedPercent"), most=100.0),
        MachineChart("GPU, %", of("gpu", "GPUUtilization"), most=100.0),
        MachineChart("GPU memory, %", of("gpu", "GPUMemoryUsedPercent"), most=100.0),
        MachineChart("Ranks, % of one core", of("process", "CPUUtilization", _is_rank)),
        MachineChart("Network, MB/s", _summed(curves, "network", named), _MEGA),
        MachineChart("Disks, MB/s", _summed(curves, "i/o", named), _MEGA),
    ]
    return [chart for chart in charts if chart.lines]


def is_charted(kind: str, name: str, dimension: str) -> bool:
    """Whether a sample is part of a chart; most are not, on machines of many cores and processes."""
    match kind:
        case "cpu":
            return _is_all_cores(name)
        case "process":
            return dimension == "CPUUtilization" and _is_rank(name)
        case "memory":
            return dimension == "MemoryUsedPercent"
        case "gpu":
            return dimension in ("GPUUtilization", "GPUMemoryUsedPercent")
        case _:
            return dimension.endswith("PerSecond")


def _is_all_cores(name: str) -> bool:
    return name == "cpus"


def _is_rank(name: str) -> bool:
    return name.startswith("rank") and "/" not in name


def _summed(curves: Curves, kind: str, named: Callable[[str, str], str]) -> dict[str, Points]:
    """Both directions of all interfaces or disks of a host, each summed."""
    sums: dict[str, dict[float, float]] = {}
    for (node, group, _, dimension), points in sorted(curves.items()):
        if group != kind or not dimension.endswith("PerSecond"):
            continue
        what = _RATES.get(dimension[:2], (dimension, dimension))[kind != "network"]
        total = sums.setdefault(named(node, what), {})
        for time, value in points:
            total[time] = total.get(time, 0.0) + value
    return {name: sorted(total.items()) for name, total in sums.items()}
