"""Records are counted once on a machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainshed.data.errors import DataError
from trainshed.data.formats.format import Counted, Format
from trainshed.data.index import counts_of


class Letters(Format):
    """Files of one-letter records."""

    name = "letters"

    def __init__(self) -> None:
        self.counted: list[str] = []

    def count(self, path: str) -> Counted:
        self.counted.append(path)
        length = len(Path(path).read_text())
        return Counted(length, tuple(range(0, length, 64)), 64)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name, length in (("a", 3), ("b", 100)):
        (tmp_path / name).write_text("x" * length)
    yield [f"{tmp_path}/a", f"{tmp_path}/b"]


def test_what_was_counted_is_not_counted_again(files: list[str], tmp_path: Path) -> None:
    first, second = Letters(), Letters()
    assert (
        counts_of(files, first, print)
        == counts_of(files, second, print)
        == [Counted(3, (0,), 64), Counted(100, (0, 64), 64)]
    )
    assert (first.counted, second.counted) == (files, [])

    (tmp_path / "a").write_text("xx")
    assert counts_of(files, second, print)[0].records == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"counts": [[1, [], 1]]}', '{"counts": [["x", [], 1], [1, 2]]}', "\0"])
def test_a_damaged_index_is_made_again(damage: str, files: list[str], tmp_path: Path) -> None:
    counts_of(files, Letters(), print)
    [index] = tmp_path.glob("tmp/*/*.json")
    index.write_text(damage)

    again = Letters()
    assert [one.records for one in counts_of(files, again, print)] == [3, 100] and again.counted == files


def test_a_folder_that_somebody_else_may_write_is_not_trusted(files: list[str], tmp_path: Path) -> None:
    counts_of(files, Letters(), print)
    [folder] = tmp_path.glob("tmp/*")
    folder.chmod(0o777)

    again = Letters()
    counts_of(files, again, print)
    assert again.counted == files


def test_a_file_that_is_gone_is_told(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "a").unlink()
    with pytest.raises(DataError, match="a cannot be read: No such file or directory"):
        counts_of(files, Letters(), print)
