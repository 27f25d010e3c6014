"""Parquet: types of columns, row groups, and files that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.data_files import samples
from support.extras import needs
from support.lazy import Lazy
from trainshed.data.formats import parquet as formats
from trainshed.data.formats.errors import DataError
from trainshed.data.formats.parquet import Parquet

needs("numpy", "pyarrow")
np = Lazy("numpy")
pa = Lazy("pyarrow")
parquet = Lazy("pyarrow.parquet")


def written(folder: Path, columns: dict[str, Any], **how: Any) -> str:
    path = str(folder / "a.parquet")
    parquet.write_table(pa.table(columns), path, **how)
    return path


def test_columns_are_plain_values_and_lists_of_numbers_arrays(tmp_path: Path) -> None:
    columns = {
        "i": pa.array([1, None, 3]),
        "s": ["a", "ö", None],
        "b": [b"\xff", b"", b"x"],
        "v": pa.array([[1.0], [], [2.0, 3.0]], pa.list_(pa.float32())),
        "f": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        "n": pa.array([[1, None], None, [3]]),
        "t": [["a"], ["b", "c"], []],
        "d": [{"x": 1}, {"x": 2}, {"x": None}],
    }
    path = written(tmp_path, columns)
    form = Parquet()
    rows = list(form.read(path, 0, form.count(path)))

    assert rows[2]["v"].dtype == np.float32 and rows[2]["f"].dtype == np.int64
    rows[0]["v"][:] = 0  # it may be written, and is nobody else's
    assert samples(form, path, 1) == [
        {"i": None, "s": "ö", "b": b"", "v": [], "f": [3, 4], "n": None, "t": ["b", "c"], "d": {"x": 2}},
        {"i": 3, "s": None, "b": b"x", "v": [2, 3], "f": [5, 6], "n": [3], "t": [], "d": {"x": None}},
    ]


@pytest.mark.parametrize("group", [1, 3, 10, 100])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_every_row_is_entered_whatever_the_groups(
    group: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "ROWS", rows)
    path = written(tmp_path, {"n": list(range(10)), "v": [[number] for number in range(10)]}, row_group_size=group)
    for first in range(12):
        assert samples(Parquet(), path, first) == [{"n": number, "v": [number]} for number in range(first, 10)]


def test_a_table_without_rows_has_no_records(tmp_path: Path) -> None:
    assert samples(Parquet(), written(tmp_path, {"n": pa.array([], pa.int8())})) == []


def test_columns_are_chosen(tmp_path: Path) -> None:
    path = written(tmp_path, {"label": [1], "image": [b"x"]})

    assert samples(Parquet(columns=("label",)), path) == [{"label": 1}]
    with pytest.raises(DataError, match=r"a\.parquet has no column 'lable'") as error:
        samples(Parquet(columns=("lable",)), path)
    assert "did you mean 'label'?" in error.value.hint


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), path)

    with pytest.raises(DataError, match="has two columns 'a'"):
        samples(Parquet(), path)
