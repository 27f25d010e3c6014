"""What rules are given: the lines that a job's measurements write, as they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.studio.rules.following import Following

SAMPLE = '{"Type": "cpu", "Name": "cpus", "Dimension": "CPUUtilization", "Value": 93.5, "Timestamp": 20.5, "NodeId": "a"}\n'
FACTS = '{"Facts": {"Rank": 3, "World": 4}}\n'
STEPS = '{"Time": 21.0, "Step": 12, "Steps": 4, "Seconds": 2.0, "Longest": 0.75, "Phases": {"rest": 2.0}}\n'
METRIC = '{"MetricName": "loss", "Value": 0.25, "Timestamp": 19.0, "IterationNumber": 7}\n'


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for folder in ("metrics/sagemaker", "profiler/system/incremental/2026112219", "profiler/steps", "tensors"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def seen(following: Following) -> list[tuple[object, ...]]:
    return [(point.name, point.value, point.time, point.step, point.rank) for point in following.look()]


def test_points_come_in_the_order_in_which_they_were_measured_and_once(output: Path) -> None:
    following = Following(str(output), f"{output}/profiler")
    add(output / "profiler/steps/algo-1.rank-3.1.json", FACTS + STEPS)
    add(output / "profiler/system/incremental/2026112219/20.algo-1.json", SAMPLE)
    add(output / "metrics/sagemaker/1.json", METRIC)

    assert seen(following) == [
        ("loss", 0.25, 19.0, 7, None),
        ("system/cpu/CPUUtilization/cpus", 93.5, 20.5, None, None),
        ("steps/seconds", 0.5, 21.0, 12, 3),
        ("steps/longest", 0.75, 21.0, 12, 3),
    ]
    assert seen(following) == []


def test_the_profilers_folder_may_be_elsewhere(output: Path) -> None:
    following = Following(str(output), f"{output}/elsewhere")
    (output / "elsewhere/steps").mkdir(parents=True)
    add(output / "elsewhere/steps/algo-1.rank-3.1.json", FACTS + STEPS)
    add(output / "profiler/steps/algo-1.rank-3.1.json", FACTS + STEPS)

    assert [name for name, *_ in seen(following)] == ["steps/seconds", "steps/longest"]


def test_a_line_counts_when_it_is_whole(output: Path) -> None:
    following = Following(str(output), f"{output}/profiler")
    add(output / "metrics/sagemaker/1.json", METRIC[:20])
    assert seen(following) == []
    add(output / "metrics/sagemaker/1.json", METRIC[20:])
    assert seen(following) == [("loss", 0.25, 19.0, 7, None)]


def test_lines_of_other_forms_are_passed_over(output: Path) -> None:
    following = Following(str(output), f"{output}/profiler")
    for place in ("metrics/sagemaker/1.json", "profiler/steps/a.json", "tensors/a.json"):
        add(output / place, 'null\n[]\n{}\n{"Facts": 1}\n{"Time": "x"}\n\xff\n')
    add(output / "profiler/system/incremental/2026112219/20.algo-1.json", "null\n[1]\n" + SAMPLE)

    assert [name for name, *_ in seen(following)] == ["system/cpu/CPUUtilization/cpus"]
