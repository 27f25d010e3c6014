"""Arrays of numpy: orders, types, compression; pickles and archives that do not fit together."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.data_files import samples
from support.extras import needs
from support.lazy import Lazy
from trainshed.data.formats.errors import DataError
from trainshed.data.formats.npz import Npy, Npz

needs("numpy")
np = Lazy("numpy")
ARRAYS: dict[str, Callable[[], Any]] = {
    "other byte order": lambda: np.arange(12, dtype=">i4").reshape(4, 3),
    "by columns": lambda: np.asfortranarray(np.arange(24.0).reshape(4, 3, 2)),
    "bool": lambda: np.array([True, False, True, True]),
    "text": lambda: np.array(["a", "bc", "", "ö"]),
    "empty rows": lambda: np.zeros((4, 0), np.int8),
    "records": lambda: np.zeros(4, [("x", np.float32), ("y", np.int8, 2)]),
    "times": lambda: np.array([1, 2, 3, 4], "M8[s]"),
    "empty rows by columns": lambda: np.asfortranarray(np.zeros((4, 0, 3))),
    "rows of several blocks": lambda: np.arange(400_000.0).reshape(4, -1),
    "elements of no bytes": lambda: np.zeros(4, "S0"),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("save", ["save", "savez", "savez_compressed"])
def test_rows_are_those_of_the_array(save: str, kind: str, tmp_path: Path) -> None:
    path, array = str(tmp_path / ("a.npy" if save == "save" else "a.npz")), ARRAYS[kind]()
    form = Npy() if save == "save" else Npz()
    getattr(np, save)(path, array)
    counted = form.count(path)
    rows = [row if save == "save" else row["arr_0"] for row in form.read(path, 1, counted)]

    assert counted.records == 4 and len(rows) == 3
    assert list(form.read(path, 9, counted)) == []
    for row, expected in zip(rows, array[1:], strict=True):
        assert np.array_equal(row, expected) and row.dtype == expected.dtype and row.shape == expected.shape
        if row.ndim:
            row.flags.writeable = True  # it is a copy


@pytest.mark.safety
@pytest.mark.parametrize("save", ["save", "savez", "savez_compressed"])
@pytest.mark.parametrize(
    ("content", "words"), [([{}, ""], "has elements.* that are Python objects"), (5, "is a single number")]
)
def test_pickles_and_single_numbers_are_refused(save: str, content: Any, words: str, tmp_path: Path) -> None:
    path = str(tmp_path / ("a.npy" if save == "save" else "a.npz"))
    getattr(np, save)(path, np.array(content))

    with pytest.raises(DataError, match=words):
        samples(Npy() if save == "save" else Npz(), path)


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npz")
    np.savez(path, x=np.arange(3), y=np.arange(4))

    with pytest.raises(DataError, match=r"a\.npz: its arrays have different numbers of rows: 'x' has 3, 'y' has 4"):
        Npz().count(path)


def archive(path: Path, files: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return str(path)


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (dict, "has no arrays"),
        (lambda: {"readme.txt": b"x"}, "'readme.txt' that is not an array"),
        (lambda: {"x.npy": b"noise" * 9}, "has a header of its array 'x' that cannot be read"),
        (lambda: {"x.npy": npy(np.arange(9))[:-1]}, "has 71 bytes of elements in 'x', and its header tells of 72"),
        (lambda: {"x.npy": npy(np.arange(9)) + b"x"}, "has 73 bytes of elements"),
    ],
)
def test_an_archive_of_something_else_is_refused(files: Callable[[], dict[str, bytes]], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        samples(Npz(), archive(tmp_path / "a.npz", files()))


def test_a_header_that_claims_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    whole = npy(np.zeros(9))
    path = tmp_path / "a.npy"
    path.write_bytes(whole.replace(b"(9,), }      ", b"(9" + b"0" * 9 + b"), }"[:2] + b"}  "))

    with pytest.raises(DataError):
        samples(Npy(), str(path))


def test_a_version_that_is_read_wrong_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    with pytest.warns(UserWarning, match="3.0"):
        np.save(path, np.zeros(3, [("Ω", np.int8)]))

    with pytest.raises(DataError, match="names of other alphabets"):
        Npy().count(path)


def test_a_damaged_compressed_array_is_refused_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random(500))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"a\.npz cannot be unpacked"):
        samples(Npz(), str(path))
