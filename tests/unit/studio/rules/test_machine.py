"""Rules on the machine and on steps: each fires for its own samples, none for those of a busy machine."""

from __future__ import annotations

import pytest

from trainshed.contract.wire.rules import ON_MACHINE, WantedRule
from trainshed.metrics.points import Point
from trainshed.studio.rules.watching import Rules

COUNT = 1200


def samples(cpu: float = 85, wait: float = 2, gpus: tuple[float, ...] = (95, 94), memory: float = 85) -> list[Point]:
    points = []
    for number in range(COUNT):
        time = number / 2
        points += [
            Point("system/cpu/CPUUtilization/cpus", cpu, time),
            Point("system/i/o/I/OWaitPercentage/i/o", wait, time),
            *(Point(f"system/gpu/GPUUtilization/gpu{gpu}", value, time) for gpu, value in enumerate(gpus)),
            *(Point(f"system/gpu/GPUMemoryUsedPercent/gpu{gpu}", memory, time) for gpu in range(len(gpus))),
        ]
    return [*points, Point("steps/seconds", 0.1, 1.0, 10, None, 0)]


def growing() -> list[Point]:
    return [
        point.replace(value=20 + point.time / 10) if "GPUMemoryUsedPercent" in point.name else point for point in samples()
    ]


def steps(*outliers: int) -> list[Point]:
    times = [0.1 + 0.001 * (number % 7) for number in range(300)]
    for place in outliers:
        times[place] = 1.5
    return [Point("steps/longest", seconds, float(number), number, None, 0) for number, seconds in enumerate(times)]


FAULTY = {
    "CPUBottleneck": lambda: samples(cpu=97, gpus=(3, 4), memory=85),
    "IOBottleneck": lambda: samples(cpu=30, wait=70, gpus=(20, 20)),
    "LowGPUUtilization": lambda: samples(cpu=80, gpus=(40, 45)),
    "GPUMemoryIncrease": lambda: growing(),
    "BatchSize": lambda: samples(cpu=20, gpus=(60, 60), memory=20),
    "LoadBalancing": lambda: samples(gpus=(95, 30)),
    "StepOutlier": lambda: steps(*range(50, 290, 20)),
    "MaxInitializationTime": list,
}
# A GPU that is used little is seen by each of these rules, in its own way.
ALSO = {
    "CPUBottleneck": {"LowGPUUtilization"}, "IOBottleneck": {"LowGPUUtilization"}, "BatchSize": {"LowGPUUtilization"},
    "LoadBalancing": {"LowGPUUtilization"},
}  # fmt: skip


def fired(points: list[Point], minutes: float = 30.0) -> set[str]:
    rules = Rules([WantedRule(name, parameters) for name, parameters in ON_MACHINE.items()], "")
    found = rules.take([], 1.0)
    found += rules.take(points, 1.0 + 60 * minutes)
    assert rules.problems == []
    return {wanted.name for wanted, _ in found}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_fires_its_own_rule(name: str) -> None:
    assert fired(FAULTY[name]()) - ALSO.get(name, set()) == {name}


HEALTHY = {
    "busy": samples,
    "no GPU": lambda: samples(gpus=()),
    "no GPU, CPUs busy": lambda: samples(cpu=100, gpus=()),
    "even steps": steps,
    "some slow steps": lambda: steps(20, 100, 200),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_fires_none(name: str) -> None:
    assert fired(HEALTHY[name]()) == set()


def test_a_training_that_has_begun_in_time_is_not_asked_again() -> None:
    assert fired([Point("loss", 1.0, 3.0)], minutes=300) == set()


def test_every_rule_on_the_machine_has_a_fault() -> None:
    assert set(FAULTY) == set(ON_MACHINE)
