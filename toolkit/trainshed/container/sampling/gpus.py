"""Samples of NVIDIA's GPUs, through nvidia-ml-py where it is installed, else through nvidia-smi, else not at all.

Only called in the sampler's process: the driver may answer late, or crash.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainshed.observe.system import Value

    Gpus = Callable[[], list[Value]]

# nvidia-smi's names of what it measures, and ours; memory.total is for the per cent alone.
_QUERY = {
    "utilization.gpu": "GPUUtilization",
    "utilization.memory": "GPUMemoryUtilization",
    "memory.used": "GPUMemoryUsedBytes",
    "memory.total": "",
    "power.draw": "GPUPowerWatts",
    "clocks.sm": "GPUClockMHz",
    "temperature.gpu": "GPUTemperature",
    "clocks_throttle_reasons.active": "GPUThrottleReasons",
}
_IDLE = 0x1  # NVML's reason for a slow clock that says nothing: nothing runs
_MIB = 1 << 20


def find_gpus(milliseconds: int) -> Gpus | None:
    """Returns what measures this machine's GPUs at each call; None where nothing does.

    Args:
        milliseconds: from call to call.
    """
    return _nvml() or _nvidia_smi(milliseconds)


# --- nvidia-ml-py -----------------------------------------------------------------------------------------------------


def _nvml() -> Gpus | None:
    try:
        import pynvml
    except Exception:  # whatever is installed under this name
        return None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:
        return None
    silent: set[tuple[int, str]] = set()  # what a GPU does not tell

    def measure() -> list[Value]:
        values: list[Value] = []
        for index, handle in enumerate(handles):
            for name, ask in _ASK.items():
                if (index, name) in silent:
                    continue
                try:
                    values += [("gpu", f"gpu{index}", what, value) for what, value in ask(pynvml, handle)]
                except Exception:  # not supported by this GPU or this driver; or the GPU is lost
                    silent.add((index, name))
        return values

    return measure if handles else None


def _memory(nvml: Any, handle: Any) -> list[tuple[str, float]]:
    found = nvml.nvmlDeviceGetMemoryInfo(handle)
    return _memory_values(float(found.used), float(found.total))


def _memory_values(used: float, total: float) -> list[tuple[str, float]]:
    per_cent = [("GPUMemoryUsedPercent", 100.0 * used / total)] if total > 0 else []
    return [*per_cent, ("GPUMemoryUsedBytes", used)]


def _utilization(nvml: Any, handle: Any) -> list[tuple[str, float]]:
    found = nvml.nvmlDeviceGetUtilizationRates(handle)
    return [("GPUUtilization", float(found.gpu)), ("GPUMemoryUtilization", float(found.memory))]


def _throttled(nvml: Any, handle: Any) -> list[tuple[str, float]]:
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return [("GPUThrottleReasons", float(ask(handle) & ~_IDLE))]


_ASK: dict[str, Callable[[Any, Any], list[tuple[str, float]]]] = {
    "utilization": _utilization,
    "memory": _memory,
    "power": lambda nvml, handle: [("GPUPowerWatts", nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0)],
    "clock": lambda nvml, handle: [("GPUClockMHz", float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))],
    "temperature": lambda nvml, handle: [
        ("GPUTemperature", float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)))
    ],
    "throttled": _throttled,
}


# --- nvidia-smi -------------------------------------------------------------------------------------------------------


def _nvidia_smi(milliseconds: int) -> Gpus | None:
    """One nvidia-smi that repeats itself: its start costs more than all that it measures.

    It ends with this process, since nobody reads what it writes then. Nothing runs between its fork and its start: in a
    process with threads of native libraries that has been seen to abort.
    """
    import subprocess

    command = [
        "nvidia-smi",
        f"--query-gpu=index,{','.join(_QUERY)}",
        "--format=csv,noheader,nounits",
        f"-lms={milliseconds}",
    ]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    assert process.stdout is not None
    out = process.stdout.fileno()
    os.set_blocking(out, False)
    waiting = [b""]

    def measure() -> list[Value]:
        try:
            while block := os.read(out, 1 << 16):
                waiting[0] += block
        except BlockingIOError:
            pass
        *lines, waiting[0] = waiting[0].split(b"\n")
        newest: dict[int, list[Value]] = {}
        for line in lines:
            if (found := values_of(line.decode("ascii", "replace"))) is not None:
                newest[found[0]] = found[1]
        return [value for _, values in sorted(newest.items()) for value in values]

    return measure


def values_of(line: str) -> tuple[int, list[Value]] | None:
    """A GPU's number and what one line of nvidia-smi tells of it; None for any other line.

    Args:
        line: the values of `_QUERY` after the GPU's number, without units; `[N/A]` and the like for what is unknown.
    """
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 1 + len(_QUERY) or not cells[0].isdecimal():
        return None
    found: dict[str, float] = {}
    for name, cell in zip(_QUERY, cells[1:], strict=True):
        try:
            found[name] = float(int(cell, 16) & ~_IDLE) if cell.startswith("0x") else float(cell)
        except ValueError:
            continue
    gpu = f"gpu{int(cells[0])}"
    values: list[Value] = [
        ("gpu", gpu, _QUERY[name], value) for name, value in found.items() if not name.startswith("memory.")
    ]
    if "memory.used" in found:
        used, total = found["memory.used"] * _MIB, found.get("memory.total", 0.0) * _MIB
        values += [("gpu", gpu, what, value) for what, value in _memory_values(used, total)]
    return int(cells[0]), values
