"""GPUs as NVIDIA's tools tell of them. There is no GPU here: nvidia-smi's lines are those of a machine that has some."""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from trainshed.container.sampling.gpus import find_gpus, values_of

LINE = "1, 87, 40, 20480, 81920, 312.55, 1755, 64, 0x0000000000000005"


def named(values: list[tuple[str, str, str, float]], gpu: str) -> dict[str, float]:
    return {dimension: value for kind, name, dimension, value in values if (kind, name) == ("gpu", gpu)}


def test_a_line_of_nvidia_smi_becomes_values() -> None:
    number, values = values_of(LINE) or (-1, [])

    assert number == 1
    assert named(values, "gpu1") == {
        "GPUUtilization": 87.0,
        "GPUMemoryUtilization": 40.0,
        "GPUPowerWatts": 312.55,
        "GPUClockMHz": 1755.0,
        "GPUTemperature": 64.0,
        "GPUThrottleReasons": 4.0,  # without the reason `idle`
        "GPUMemoryUsedPercent": 25.0,
        "GPUMemoryUsedBytes": float(20480 << 20),
    }


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    _, values = values_of("0, [N/A], [N/A], 10, [N/A], [Not Supported], 210, 30, [N/A]") or (-1, [])

    assert set(named(values, "gpu0")) == {"GPUMemoryUsedBytes", "GPUClockMHz", "GPUTemperature"}


@pytest.mark.parametrize("line", ["", "Unable to determine the device handle for GPU0", "0, 1", "x" + LINE])
def test_other_lines_are_none(line: str) -> None:
    assert values_of(line) is None


def test_one_nvidia_smi_repeats_itself_and_the_newest_line_of_each_gpu_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    program = tmp_path / "nvidia-smi"
    other = LINE.replace("1,", "0,", 1)
    program.write_text(
        f"#!/bin/sh\necho '{LINE.replace('87', '3')}'\necho '{LINE}'\necho '{other}'\nprintf '0, 1'\nsleep 60\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    measure = find_gpus(500)
    assert measure is not None
    while not (values := measure()):
        time.sleep(0.01)
    for _ in range(200):
        if named(values, "gpu0"):
            break
        time.sleep(0.01)
        values += measure()

    assert named(values, "gpu1")["GPUUtilization"] == 87.0 and named(values, "gpu0")["GPUUtilization"] == 87.0
    assert measure() == []


def test_without_a_tool_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "/nowhere")

    assert find_gpus(500) is None


def test_nvml_is_asked_once_for_what_it_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of nvidia-ml-py that are used, by their names in NVML's documentation."""
    asked: list[str] = []

    def refuse(*_: Any) -> float:
        asked.append("power")
        raise RuntimeError("Not Supported")

    nvml: Any = types.ModuleType("pynvml")
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 1
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetUtilizationRates = lambda _: types.SimpleNamespace(gpu=50, memory=20)
    nvml.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(used=1 << 30, total=4 << 30)
    nvml.nvmlDeviceGetPowerUsage = refuse
    nvml.NVML_CLOCK_SM, nvml.NVML_TEMPERATURE_GPU = 1, 0
    nvml.nvmlDeviceGetClockInfo = lambda *_: 1000
    nvml.nvmlDeviceGetTemperature = lambda *_: 40
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda _: 9
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    measure = find_gpus(500)
    assert measure is not None
    first, second = measure(), measure()

    assert first == second and asked == ["power"]
    assert named(first, "gpu0") == {
        "GPUUtilization": 50.0,
        "GPUMemoryUtilization": 20.0,
        "GPUMemoryUsedPercent": 25.0,
        "GPUMemoryUsedBytes": float(1 << 30),
        "GPUClockMHz": 1000.0,
        "GPUTemperature": 40.0,
        "GPUThrottleReasons": 8.0,
    }
