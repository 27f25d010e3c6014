"""Samples in the platform's form: what is written comes back, and what is broken does not break the rest."""

from __future__ import annotations

import json
from pathlib import Path

from trainshed.observe.system import FOLDER, file_of, files_below, plain, read_system, sample_text

VALUES = [("cpu", "cpu0", "CPUUtilization", 97.5), ("memory", "memory", "MemoryUsedPercent", 40.0)]


def written(folder: Path, second: int, text: bytes, number: int = 1) -> Path:
    path = folder / FOLDER / file_of(second, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


def test_a_line_has_the_platforms_fields_and_its_folder_is_the_hour_in_utc() -> None:
    line = sample_text(VALUES[:1], "algo-1", 1790000041.25).decode()

    assert json.loads(line) == {
        "Type": "cpu",
        "Name": "cpu0",
        "Dimension": "CPUUtilization",
        "Value": 97.5,
        "NodeId": "algo-1",
        "Timestamp": 1790000041.25,
    }
    assert file_of(1790000040, 2) == "2026092114/1790000040.algo-2.json"


def test_values_that_are_not_finite_are_left_out() -> None:
    assert sample_text([("cpu", "cpu0", "CPUUtilization", float("nan"))], "algo-1", 1.0) == b""


def test_names_of_programs_and_disks_cannot_break_a_line() -> None:
    name = plain('a"b\\c\nd' + "é" * 99)
    (line,) = sample_text([("process", name, "CPUUtilization", 1.0)], 'no"de', 1.0).splitlines()

    assert json.loads(line)["Name"].startswith("a?b?c?d?") and json.loads(line)["NodeId"] == 'no"de'


def test_hosts_files_and_times_come_back_in_order(tmp_path: Path) -> None:
    written(tmp_path, 1790000100, sample_text(VALUES, "algo-1", 1790000100.5))
    written(tmp_path, 1790000040, sample_text(VALUES, "algo-1", 1790000041.0))
    written(tmp_path, 1790000040, sample_text(VALUES[:1], "b", 1790000042.0), number=2)
    curves = read_system(str(tmp_path), str(tmp_path))

    assert curves["algo-1", "cpu", "cpu0", "CPUUtilization"] == [(1790000041.0, 97.5), (1790000100.5, 97.5)]
    assert curves["b", "cpu", "cpu0", "CPUUtilization"] == [(1790000042.0, 97.5)]
    assert len(curves) == 3
    assert [Path(path).name for path in files_below(str(tmp_path), 2)] == ["1790000040.algo-2.json"]
    later = read_system(str(tmp_path), since=1790000050.0)
    assert [points for key, points in later.items() if key[2] == "cpu0"] == [[(1790000100.5, 97.5)]]


def test_broken_lines_and_other_files_are_passed_over(tmp_path: Path) -> None:
    good = sample_text(VALUES[:1], "algo-1", 5.0)
    broken = [b"[]\n", b"null\n", b'{"Type": "cpu"}\n', b"\xff\n", b'{"Type": 1, "NodeId": {}, "Dimension": 2}\n']
    broken.append(good.replace(b"97.5", b'"much"'))
    broken.append(good.replace(b"97.5", b"1e999"))
    path = written(tmp_path, 60, b"".join(broken) + good + good[:-20])
    path.with_name("60.thinned").write_bytes(good)
    (tmp_path / FOLDER / "notes").mkdir()

    assert list(read_system(str(tmp_path)).values()) == [[(5.0, 97.5)]]
    assert read_system(str(tmp_path / "absent")) == {}
