"""Columns tell what series tell, read on where files have grown, and hold on to little."""

from __future__ import annotations

import math
from pathlib import Path

from trainshed.metrics import columns
from trainshed.metrics.columns import Columns
from trainshed.metrics.points import Point, line_of
from trainshed.metrics.series import read_outputs


def write(output: Path, name: str, *points: Point, kind: str = "trainshed", mode: str = "a") -> Path:
    path = output / "metrics" / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write("".join(map(line_of, points)))
    return path


def run(values: list[float], *, first: int = 1, time: float = 0.0, rank: int | None = 0) -> list[Point]:
    return [Point("loss", value, time + number + 0.5, first + number, None, rank) for number, value in enumerate(values)]


def read(output: Path) -> dict[str, list[float]]:
    held = Columns()
    assert held.read_on([str(output)])
    return {name: list(curve.track.values) for name, curve in held.curves().items()}


def test_columns_and_series_tell_the_same(tmp_path: Path) -> None:
    odd = [math.inf, -math.inf, 1e300, -2.5e-9, 7]
    write(tmp_path, "a.json", *run([3, 2, 1]), *run([9], rank=1), Point("acc", 0.5, 3.0, None, 1.5), *run(odd, first=50))
    write(tmp_path, "b.json", *run([30, 20], first=2, time=100.0), Point('ä "quoted"', 1.0, 9.0), Point("é", -1.0, 10.0))
    write(tmp_path, "c.json", Point("mine", 4.0, 2.0), kind="sagemaker")
    series = read_outputs(str(tmp_path))

    assert read(tmp_path) == {name: [point.value for point in one.points] for name, one in series.items()}
    assert read(tmp_path)["loss"] == [3, 30, 20]


def test_a_file_that_grows_is_read_on_and_half_a_line_waits(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", *run([3, 2]))
    held = Columns()
    held.read_on([str(tmp_path)])
    line = line_of(run([1], first=3)[0])
    with path.open("a") as file:
        file.write(line[:20])
    held.read_on([str(tmp_path)])
    assert list(held.curves()["loss"].track.values) == [3, 2]
    with path.open("a") as file:
        file.write(line[20:])
    held.read_on([str(tmp_path)])

    assert list(held.curves()["loss"].track.values) == [3, 2, 1]


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    write(tmp_path, "a.json", *run([3, 2, 1]))
    held = Columns()
    held.read_on([str(tmp_path)])
    write(tmp_path, "a.json", *run([8]), mode="w")
    held.read_on([str(tmp_path)])

    assert list(held.curves()["loss"].track.values) == [8]


def test_lines_of_other_people_and_broken_ones_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", *run([3]))
    with path.open("ab") as file:
        file.write(b'{"MetricName": "loss", "Value": 1.2.3, "Timestamp": 1.0}\n\xff\xfe\n[]\n' + b"x" * (3 << 20) + b"\n")
        file.write(line_of(run([1], first=2)[0]).encode())

    assert read(tmp_path) == {"loss": [3, 1]}


def test_names_without_end_cost_points_not_memory(tmp_path: Path, monkeypatch: object) -> None:
    write(tmp_path, "a.json", *(Point(f"name-{n}", 1.0, float(n)) for n in range(columns.MOST_NAMES + 5)))
    held = Columns()
    held.read_on([str(tmp_path)])

    assert (len(held.curves()), held.left_out) == (columns.MOST_NAMES, 5)


def test_reading_stops_when_its_time_is_over_and_goes_on_later(tmp_path: Path) -> None:
    write(tmp_path, "a.json", *run([float(n) for n in range(20_000)]))
    held = Columns()
    looks = 1
    while not held.read_on([str(tmp_path)], 0.0):
        looks += 1

    assert looks > 1 and len(held.curves()["loss"].track) == 20_000


def test_event_files_count_where_no_metric_has_their_name(tmp_path: Path) -> None:
    from trainshed.metrics.series import Series
    from trainshed.metrics.tensorboard import write as write_events

    events = tuple(Point("events", float(n), 1.0 + n, n) for n in range(3))
    write_events(str(tmp_path / "tensorboard"), [Series("events", None, events), Series("loss", None, events)])
    write(tmp_path, "a.json", *run([3, 2]))

    assert read(tmp_path) == {"loss": [3, 2], "events": [0, 1, 2]}


def test_moments_are_those_of_the_metric_that_has_most_steps_of_all_its_processes(tmp_path: Path) -> None:
    write(tmp_path, "a.json", *run([3, 2, 1]), Point("acc", 0.5, 3.0, 2))
    write(tmp_path, "b.json", *run([30, 20], first=2, time=100.0), Point("loss", 1.0, 105.0))
    held = Columns()
    held.read_on([str(tmp_path)])

    assert held.moments() == [(0.5, 1), (1.5, 2), (2.5, 3), (100.5, 2), (101.5, 3)]
    assert Columns().moments() == []
