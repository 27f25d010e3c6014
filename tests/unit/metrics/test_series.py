"""Points become curves: one a metric, without what an interrupted job measured twice."""

from __future__ import annotations

from pathlib import Path

from trainshed.metrics.points import Point, line_of
from trainshed.metrics.series import read_outputs, series_of


def points(*values: float, first: int = 1, time: float = 0.0, rank: int | None = None) -> list[Point]:
    return [Point("loss", value, time + number, first + number, None, rank) for number, value in enumerate(values)]


def values(files: list[list[Point]]) -> list[float]:
    return [point.value for point in series_of(files)["loss"].points]


def test_steps_that_a_restart_made_again_count_once_whichever_file_comes_first() -> None:
    lives = [points(5, 4, 3, 2), points(30, 20, first=3, time=100.0)]

    assert values(lives) == values(lives[::-1]) == [5, 4, 30, 20]


def test_steps_that_begin_anew_in_one_process_are_no_restart() -> None:
    """A script that counts the batches of each epoch."""
    series = series_of([points(5, 4) + points(3, 2, time=10.0)])["loss"]

    assert [point.value for point in series.points] == [5, 4, 3, 2]
    assert series.steps() == [1, 2, 3, 4]


def test_the_lowest_rank_speaks_for_all() -> None:
    series = series_of([points(1, rank=1), points(2, rank=0, time=50.0)])["loss"]

    assert (series.rank, [point.value for point in series.points]) == (0, [2])


def test_points_without_steps_are_numbered() -> None:
    assert series_of([[Point("a", 1.0, 1.0), Point("a", 2.0, 2.0)]])["a"].steps() == [1, 2]


def test_a_folder_is_read_up_to_its_whole_lines(tmp_path: Path) -> None:
    line = line_of(Point("loss", 1.0, 1.0))
    folder = tmp_path / "metrics/sagemaker"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(line + "no JSON\n" + line[:-5])
    (folder / "2.txt").write_text(line)
    (folder / "3.json").mkdir()

    assert len(read_outputs(str(tmp_path), str(tmp_path / "absent"))["loss"].points) == 1
