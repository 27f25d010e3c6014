"""Which format a channel has."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.data_files import frame, tar, tensor_record, tf_frame
from support.extras import needs
from trainshed.data.formats.delimited import Csv
from trainshed.data.formats.errors import DataError
from trainshed.data.formats.format import ending_of
from trainshed.data.formats.table import FORMATS, by_content_type, named, of, of_beginning

needs("numpy", "pyarrow")


def files(folder: Path, **contents: bytes) -> list[str]:
    """Files whose names have a dot for each double underscore."""
    paths = []
    for name, content in contents.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content)
        paths.append(str(path))
    return paths


def test_names_and_content_types_are_of_one_format_each() -> None:
    names = [form.name for form in FORMATS]
    types = [kind for form in FORMATS for kind in form.content_types]

    assert len(set(names)) == len(names) and all(names)
    assert len(set(types)) == len(types) and all(kind == kind.lower() for kind in types)


@pytest.mark.parametrize(
    ("name", "ending"),
    [("a/b.CSV", ".csv"), ("b.csv.gz", ".csv"), ("b.tgz", ".tar"), ("b.tar.gz", ".tar"), ("a.d/b", ""), (".gz", "")],
)
def test_an_ending_is_told_without_gz(name: str, ending: str) -> None:
    assert ending_of(name) == ending


def test_a_name_decides_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    assert of(files(tmp_path, a__txt=b"x"), "text/plain", "jsonlines").name == "jsonlines"
    with pytest.raises(DataError, match="'jsonline' is not a known format") as error:
        of([], "", "jsonline")
    assert error.value.hint == "did you mean 'jsonlines'?"


def test_a_content_type_decides_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    assert of(files(tmp_path, a__txt=b"x"), "Text/CSV; charset=utf-8;label_size=0").name == "csv"
    with pytest.raises(DataError, match="no format is known for the content type 'text/cvs'") as error:
        of([], "text/cvs")
    assert "did you mean 'text/csv'?" in error.value.hint and "format=" in error.value.hint
    assert by_content_type("application/octet-stream") is None and by_content_type("") is None


def test_a_content_type_says_whether_there_is_a_header() -> None:
    found = [by_content_type(f"text/csv{header}") for header in ("", "; header=present", ";header=absent")]

    assert [form.header for form in found if isinstance(form, Csv)] == [None, True, False]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (frame(b"mxnet"), "recordio"),
        (tf_frame(b"x"), "tfrecord"),
        (tar({"a.x": b"1"}), "tar"),
        (b'{"a": 1}\n', "jsonlines"),
        (b'\n  {"a": 1}', "jsonlines"),
        (b'{"a": "' + b"x" * 100_000 + b'"}\n', "jsonlines"),
        (b"1,2\n3,4\n", "csv"),
        (b"a,b\n1,2\n", "csv"),
        (b"a\tb\n1\t2\n", "tsv"),
        (b"hello, world\nthis, too, is text\n", "lines"),
        ("{ä\n".encode(), "lines"),
        ("ö".encode() * 40_000, "lines"),
    ],
)
def test_a_file_without_ending_is_told_by_looking(content: bytes, name: str, tmp_path: Path) -> None:
    (path,) = files(tmp_path, part=content)

    assert of([path]).name == name
    assert of_beginning(content[:65_536], "train_0").name == name


def test_what_looks_like_nothing_is_refused(tmp_path: Path) -> None:
    paths = files(tmp_path, noise=b"\0\1\2\3" * 9, packed=b"\x1f\x8b\x08\0rest", empty=b"")
    for path, words in zip(paths, ("none of the known formats", "compressed with gzip", "is empty"), strict=True):
        with pytest.raises(DataError, match=f"{path} .*{words}"):
            of([path])
        if "empty" not in path:
            with pytest.raises(DataError, match=words):
                of_beginning(Path(path).read_bytes(), path)


def test_a_json_file_has_an_object_on_each_line(tmp_path: Path) -> None:
    assert of(files(tmp_path, a__json=b'{"a": 1}\n{"a": 2}\n')).name == "jsonlines"
    for content in (b'{\n  "a": 1\n}\n', b'[{"a": 1}, {"a": 2}]'):
        with pytest.raises(DataError, match=r"b\.json is not JSON with an object on each line"):
            of(files(tmp_path, b__json=content))


def test_files_of_different_formats_are_refused_with_their_names(tmp_path: Path) -> None:
    paths = files(tmp_path, a__csv=b"1,2\n", b__csv=b"1,2\n", c__jsonl=b"{}\n")
    with pytest.raises(DataError, match=r"different formats: \S+a\.csv has csv, \S+c\.jsonl has jsonlines"):
        of(paths)
    assert of(paths, "text/csv").name == "csv"


def test_empty_files_do_not_disagree(tmp_path: Path) -> None:
    assert of(files(tmp_path, _SUCCESS=b"", part=b"", part1=b"1,2\n3,4\n")).name == "csv"
    assert of(files(tmp_path, a__csv=b"")).name == "csv"


def test_one_ending_of_two_formats_is_told_by_the_content(tmp_path: Path) -> None:
    assert of(files(tmp_path, a__rec=frame(tensor_record([1], 2)))).name == "recordio-protobuf"
    assert of(files(tmp_path, b__rec=frame(b"image"))).name == "recordio"
    assert of(files(tmp_path, c__rec=b"")).name == "recordio"


def test_a_compressed_file_that_is_not_a_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet\.gz: parquet is not read from a compressed file"):
        of(files(tmp_path, a__parquet__gz=b"x"))


def test_what_cannot_be_streamed_is_refused_for_a_pipe() -> None:
    with pytest.raises(DataError, match="train_0: parquet cannot be read from a pipe") as error:
        of_beginning(b"PAR1", "train_0", "application/x-parquet")
    assert "recordio" in error.value.hint
    with pytest.raises(DataError, match="npy cannot be read from a pipe"):
        of_beginning(b"", "train_0", "", "npy")


def test_a_missing_package_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.data.formats import table

    monkeypatch.setattr(table, "find_spec", lambda name: None if name == "pyarrow" else object())
    with pytest.raises(DataError, match="reading parquet needs pyarrow") as error:
        named("parquet")
    assert error.value.hint == "pip install 'trainshed[data]'"
    assert named("lines").name == "lines"
