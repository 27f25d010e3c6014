"""A host's samples stay within their bound, evenly over the whole run, also when the disk or the clock misbehaves."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from trainshed.container.sampling.sample_files import SampleFiles
from trainshed.observe.system import files_below, read_system, sample_text

START = 1790000040  # a whole minute
KEY = ("algo-1", "cpu", "cpu0", "CPUUtilization")


def text(now: float) -> bytes:
    return sample_text([("cpu", f"cpu{core}", "CPUUtilization", 50.0) for core in range(4)], "algo-1", now)


def run(files: SampleFiles, seconds: int, start: float = START, interval: float = 1.0) -> None:
    for number in range(int(seconds / interval)):
        now = start + number * interval
        files.write(text(now), now)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def times(folder: Path) -> list[float]:
    return [time for time, _ in read_system(str(folder))[KEY]]


def test_each_minute_has_a_file(tmp_path: Path) -> None:
    run(SampleFiles(str(tmp_path), 1, 1.0), 150)

    names = [Path(path).name for path in files_below(str(tmp_path))]
    assert names == [f"{START + 60 * minute}.algo-1.json" for minute in range(3)]
    assert times(tmp_path) == [START + second for second in range(150)]


def test_a_long_run_stays_within_the_bound_and_has_samples_of_all_its_time(tmp_path: Path) -> None:
    most = 60_000
    run(SampleFiles(str(tmp_path), 1, 1.0, most), 3600)
    found = times(tmp_path)

    assert size(tmp_path) <= most + 60 * len(text(START))
    older = [time for time in found if time < found[-1] - 60]
    gaps = {b - a for a, b in itertools.pairwise(older[1:])}  # the first sample stays wherever it is
    assert found[0] == START and found[-1] == START + 3599
    assert len(gaps) == 1 and len(older) > most / len(text(START)) / 2.5, "as many as fit, evenly"
    assert all(found.count(time) == 1 for time in found)


def test_minutes_without_a_sample_leave_neither_files_nor_folders(tmp_path: Path) -> None:
    run(SampleFiles(str(tmp_path), 1, 10.0, 2_000), 9 * 3600, interval=10.0)

    assert all(os.path.getsize(path) for path in files_below(str(tmp_path)))
    assert all(any(hour.iterdir()) for hour in (tmp_path / "system/incremental").iterdir())
    assert not list(tmp_path.rglob("*.thinned"))


def test_what_an_earlier_life_left_counts(tmp_path: Path) -> None:
    first = SampleFiles(str(tmp_path), 1, 1.0)
    run(first, 1200)
    first.close()
    run(SampleFiles(str(tmp_path), 1, 1.0, 40_000), 60, START + 1200)

    assert size(tmp_path) <= 40_000 + 60 * len(text(START))
    assert times(tmp_path)[0] == START


@pytest.mark.safety
def test_another_hosts_files_in_the_same_folder_are_left_alone(tmp_path: Path) -> None:
    run(SampleFiles(str(tmp_path), 2, 1.0), 120)
    run(SampleFiles(str(tmp_path), 1, 1.0, 500), 1200)

    assert [os.path.getsize(path) for path in files_below(str(tmp_path), 2)] == [60 * len(text(START))] * 2


def test_a_disk_that_is_full_costs_samples_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SampleFiles(str(tmp_path), 1, 1.0)
    files.write(text(START), START)
    full = [True]
    write = os.write

    def half(fd: int, data: bytes) -> int:
        if not full[0]:
            return write(fd, data)
        if len(data) < len(text(START)):
            raise OSError(28, "No space left on device")
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        files.write(text(START + 1), START + 1)
    full[0] = False
    files.write(text(START + 2), START + 2)

    (path,) = files_below(str(tmp_path))
    assert Path(path).read_bytes() == text(START) + text(START + 2)


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    files = SampleFiles(str(tmp_path / "profiler"), 1, 1.0)
    run(files, 60)
    for path in sorted((tmp_path / "profiler").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run(files, 60, START + 60)

    assert times(tmp_path / "profiler") == [START + 60 + second for second in range(60)]


def test_a_clock_that_is_set_back_writes_on(tmp_path: Path) -> None:
    files = SampleFiles(str(tmp_path), 1, 1.0)
    run(files, 90)
    run(files, 30, START + 30)

    assert len(times(tmp_path)) == 120
