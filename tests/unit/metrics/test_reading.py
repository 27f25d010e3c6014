"""What a run has measured becomes curves: one a metric, read on where files have grown, without what was measured twice."""

from __future__ import annotations

import math
import os
from pathlib import Path

from support.extras import needs
from trainshed.metrics import reading
from trainshed.metrics.points import Point, line_of
from trainshed.metrics.reading import MetricsReader, Summary, curves_of
from trainshed.metrics.reading import read as read_all


def write(output: Path, name: str, *points: Point, kind: str = "trainshed", mode: str = "a") -> Path:
    path = output / "metrics" / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write("".join(map(line_of, points)))
    return path


def run(values: list[float], *, first: int = 1, time: float = 0.0, rank: int | None = 0) -> list[Point]:
    return [Point("loss", value, time + number + 0.5, first + number, None, rank) for number, value in enumerate(values)]


def read(output: Path) -> dict[str, list[float]]:
    held = MetricsReader()
    assert held.read_on([str(output)])
    return {name: list(curve.track.values) for name, curve in held.curves().items()}


def test_every_form_of_a_value_is_read_and_of_two_lives_the_later_one_counts(tmp_path: Path) -> None:
    odd = [math.inf, -math.inf, 1e300, -2.5e-9, 7]
    write(tmp_path, "a.json", *run([3, 2, 1]), *run([9], rank=1), Point("acc", 0.5, 3.0, None, 1.5), *run(odd, first=50))
    write(tmp_path, "b.json", *run([30, 20], first=2, time=100.0), Point('ä "quoted"', 1.0, 9.0), Point("é", -1.0, 10.0))
    write(tmp_path, "c.json", Point("mine", 4.0, 2.0), kind="sagemaker")

    assert read(tmp_path) == {
        "loss": [3, 30, 20], "mine": [4.0], "acc": [0.5], 'ä "quoted"': [1.0], "é": [-1.0],
    }  # fmt: skip


def test_steps_that_a_restart_made_again_count_once_whichever_file_comes_first(tmp_path: Path) -> None:
    for folder, names in (("a", ("1.json", "2.json")), ("b", ("2.json", "1.json"))):
        write(tmp_path / folder, names[0], *run([5, 4, 3, 2]))
        write(tmp_path / folder, names[1], *run([30, 20], first=3, time=100.0))
        assert read(tmp_path / folder) == {"loss": [5, 4, 30, 20]}


def test_steps_that_begin_anew_in_one_process_are_no_restart() -> None:
    """A script that counts the batches of each epoch."""
    curve = curves_of([*run([5, 4]), *run([3, 2], time=10.0)])["loss"]

    assert [point.value for point in curve.points()] == [5, 4, 3, 2]
    assert curve.steps() is None and curve.whole_steps() == [1, 2, 3, 4]


def test_the_lowest_rank_speaks_for_all_and_points_come_back_as_they_were() -> None:
    points = [Point("loss", 2.0, 50.0, None, 0.5, 0), Point("loss", 3.0, 51.0, 7, None, 0)]
    curve = curves_of([*run([1], rank=1), *points])["loss"]

    assert list(curve.points()) == points and curve.whole_steps() == [1, 2]


def test_a_curve_in_a_few_numbers_passes_over_what_is_not_one() -> None:
    assert curves_of(run([2, math.nan, -1, 3]))["loss"].summary() == Summary(4, 2.0, 3.0, -1.0, 3.0)
    assert str(curves_of(run([math.nan]))["loss"].summary()) == "Summary(count=1, first=nan, last=nan, least=nan, most=nan)"


def test_files_of_another_kind_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "1.json", *run([1]))
    write(tmp_path, "2.txt", *run([2]))
    (tmp_path / "metrics/trainshed/3.json").mkdir()
    os.mkfifo(tmp_path / "metrics/trainshed/4.json")

    assert [len(curve.track) for curve in read_all([str(tmp_path), str(tmp_path / "absent")]).values()] == [1]


def test_a_file_that_grows_is_read_on_and_half_a_line_waits(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", *run([3, 2]))
    held = MetricsReader()
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
    held = MetricsReader()
    held.read_on([str(tmp_path)])
    assert list(held.curves()["loss"].track.values) == [3, 2, 1]
    write(tmp_path, "a.json", mode="w")
    held.read_on([str(tmp_path)])
    assert held.curves() == {}
    write(tmp_path, "a.json", *run([8]))
    held.read_on([str(tmp_path)])

    assert list(held.curves()["loss"].track.values) == [8]


def test_lines_of_other_people_and_broken_ones_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", *run([3]))
    with path.open("ab") as file:
        file.write(b'{"MetricName": "loss", "Value": 1.2.3, "Timestamp": 1.0}\n\xff\xfe\n[]\n' + b"x" * (3 << 20) + b"\n")
        file.write(line_of(run([1], first=2)[0]).encode())

    assert read(tmp_path) == {"loss": [3, 1]}


def test_names_without_end_cost_points_not_memory(tmp_path: Path, monkeypatch: object) -> None:
    write(tmp_path, "a.json", *(Point(f"name-{n}", 1.0, float(n)) for n in range(reading.MOST_NAMES + 5)))
    held = MetricsReader()
    held.read_on([str(tmp_path)])

    assert (len(held.curves()), held.left_out) == (reading.MOST_NAMES, 5)


def test_reading_stops_when_its_time_is_over_and_goes_on_later(tmp_path: Path) -> None:
    write(tmp_path, "a.json", *run([float(n) for n in range(20_000)]))
    held = MetricsReader()
    looks = 1
    while not held.read_on([str(tmp_path)], 0.0):
        looks += 1

    assert looks > 1 and len(held.curves()["loss"].track) == 20_000


def test_event_files_count_where_no_metric_has_their_name_and_are_read_on(tmp_path: Path) -> None:
    needs("tensorboardX")
    from trainshed.metrics.tensorboard import write as write_events

    write(tmp_path, "a.json", *run([3, 2]))
    points = [Point("events", float(n), 1.0 + n, n) for n in range(3)]
    series = curves_of([*points, *(point.replace(name="loss") for point in points)]).values()
    write_events(str(tmp_path / "made"), series, {})
    (made,) = (tmp_path / "made").iterdir()
    (tmp_path / "tensorboard").mkdir()
    held = MetricsReader()
    lengths = set()
    for size in range(made.stat().st_size + 1):  # it is being written
        with (tmp_path / "tensorboard" / made.name).open("wb" if not size else "ab") as file:
            file.write(made.read_bytes()[size - 1 : size])
        assert held.read_on([str(tmp_path)])
        lengths.add(len(held.curves()["events"].track) if "events" in held.curves() else 0)

    assert lengths == {0, 1, 2, 3} and list(held.curves()["loss"].track.values) == [3, 2]


def test_moments_are_those_of_the_metric_that_has_most_steps_of_all_its_processes(tmp_path: Path) -> None:
    write(tmp_path, "a.json", *run([3, 2, 1]), Point("acc", 0.5, 3.0, 2))
    write(tmp_path, "b.json", *run([30, 20], first=2, time=100.0), Point("loss", 1.0, 105.0))
    held = MetricsReader()
    held.read_on([str(tmp_path)])

    assert held.moments() == [(0.5, 1), (1.5, 2), (2.5, 3), (100.5, 2), (101.5, 3)]
    assert MetricsReader().moments() == []
