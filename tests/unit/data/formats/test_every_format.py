"""What holds for all formats: counted is what is read, from every record on, and nothing is silently short."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from support.data_files import CASES, Case, cuts, plain, samples
from support.extras import needs
from trainshed.data.formats import format as formats
from trainshed.data.formats import frames
from trainshed.data.formats.errors import DataError, SampleError
from trainshed.data.formats.format import Counted, StreamFormat, opened
from trainshed.data.formats.table import FORMATS, of, of_beginning

needs("numpy", "pyarrow")

every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
streams = pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.form.streams], ids=[n for n, c in CASES.items() if c.form.streams]
)


def test_every_format_has_a_case() -> None:
    untested = {"images", "tfrecord-bytes", "tsv"}  # with tests of their own

    assert {form.name for form in FORMATS} == {case.form.name for case in CASES.values()} | untested


@every
@pytest.mark.parametrize("count", [1, 2, 7])
def test_what_was_written_is_read(case: Case, count: int, tmp_path: Path) -> None:
    path = case.written(tmp_path, count)

    assert case.form.count(path).records == count
    assert samples(case.form, path) == case.expected(count)


@every
@pytest.mark.parametrize("stride", [1, 2, 3, 100])
def test_reading_begins_at_every_record(case: Case, stride: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "STRIDE", stride)
    path = case.written(tmp_path, 7)
    counted = case.form.count(path)

    assert not counted.marks or len(counted.marks) == -(-7 // stride)
    for first in range(9):
        assert samples(case.form, path, first) == case.expected(7)[first:]


@streams
def test_the_marks_are_where_records_begin(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(case.form, StreamFormat)
    monkeypatch.setattr(formats, "STRIDE", 1)
    path = case.written(tmp_path, 7)
    counted = case.form.count(path)
    with opened(path) as stream:
        offsets = [offset for offset, _ in case.form.split(stream, path)]

    assert list(counted.marks) == offsets == [case.form.offset_of(path, number, counted) for number in range(7)]
    assert StreamFormat.count(case.form, path) == counted  # by reading


@streams
def test_blocks_end_anywhere(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = case.written(tmp_path, 7)
    modules = [sys.modules[cls.__module__] for cls in type(case.form).__mro__[:-1]] + [frames]
    for block in (2, 3, 5, 16, 19, 64, 600):
        if block < 16 and case.form.name not in ("lines", "jsonlines", "csv"):  # a header is read at once
            continue
        for module in modules:
            monkeypatch.setattr(module, "BLOCK", block, raising=False)

        assert case.form.count(path).records == 7
        assert samples(case.form, path) == case.expected(7), block


@streams
def test_a_compressed_file_is_read(case: Case, tmp_path: Path) -> None:
    path = case.written(tmp_path, 7)
    packed = Path(f"{path}.gz")
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))

    assert case.form.count(str(packed)) == Counted(7)
    assert samples(case.form, str(packed), 3) == case.expected(7)[3:]
    assert of([str(packed)]).name == case.form.name


@streams
def test_a_compressed_file_that_is_cut_anywhere_is_refused(case: Case, tmp_path: Path) -> None:
    packed = Path(case.written(tmp_path, 2) + ".gz")
    packed.write_bytes(gzip.compress(Path(case.written(tmp_path, 2)).read_bytes()))
    for _, cut in cuts(str(packed)):
        with pytest.raises(DataError, match=packed.name):
            case.form.count(str(packed))
            pytest.fail(f"cut at {cut}")


@pytest.mark.safety
@every
def test_a_file_that_is_cut_anywhere_is_refused_or_was_whole_until_there(case: Case, tmp_path: Path) -> None:
    count = 1 if case.form.name == "tar" else 2  # of 3072 bytes each
    path, expected = case.written(tmp_path, count), case.expected(count)
    for whole, cut in cuts(path):
        try:
            counted = case.form.count(path)
            found = [plain(case.form.sample(record)) for record in case.form.read(path, 0, counted)]
        except DataError as error:
            assert isinstance(error, SampleError) or Path(path).name in str(error), error
            continue
        assert case.silent(whole, cut), f"cut at {cut} of {len(whole)}: {found}"
        assert len(found) == counted.records
        if case.form.name in ("lines", "csv"):  # of which the last one may be cut
            found = found[:-1]
        if case.form.name != "csv" or cut > 10:  # else the header is alone
            assert found == expected[: len(found)]


@every
def test_one_byte_that_changes_is_refused_or_read(case: Case, tmp_path: Path) -> None:
    path = Path(case.written(tmp_path, 2))
    whole = path.read_bytes()
    for place in range(0, len(whole), 1 + len(whole) // 400):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            counted = case.form.count(str(path))
            found = [case.form.sample(record) for record in case.form.read(str(path), 0, counted)]
        except DataError:
            continue
        assert len(found) == counted.records


@every
def test_another_format_is_refused(case: Case, tmp_path: Path) -> None:
    if case.form.name == "lines":
        pytest.skip("anything is a line")
    path = tmp_path / "noise"
    path.write_bytes(bytes(range(256)) * 8)

    with pytest.raises(DataError):
        samples(case.form, str(path))


@every
def test_an_empty_file_has_no_records_or_is_refused(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    if case.form.name in ("parquet", "npy", "npz", "tar"):  # which cannot be empty
        with pytest.raises(DataError, match="empty"):
            case.form.count(str(path))
    else:
        assert case.form.count(str(path)) == Counted(0) and samples(case.form, str(path)) == []


@every
def test_a_file_that_is_missing_is_the_systems_error(case: Case, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        case.form.count(str(tmp_path / "missing"))


@every
def test_a_file_that_has_changed_since_it_was_counted_is_refused(case: Case, tmp_path: Path) -> None:
    counted = case.form.count(case.written(tmp_path, 5))
    for other in (3, 6):
        path = case.written(tmp_path, other)
        with pytest.raises(DataError, match=Path(path).name):
            list(case.form.read(path, 0, counted))


@every
def test_a_batch_is_its_samples_stacked(case: Case, tmp_path: Path) -> None:
    path = case.written(tmp_path, 7)
    records = list(case.form.read(path, 0, case.form.count(path)))
    batch = case.form.batch(records)
    if batch is None:
        assert case.form.name not in ("recordio-protobuf", "npy", "npz")
        return
    expected = [plain(case.form.sample(record)) for record in records]
    if isinstance(batch, dict):
        assert plain(batch) == {name: [one[name] for one in expected] for name in expected[0]}
    else:
        assert plain(batch) == expected


@every
def test_a_file_is_recognized_by_its_name_and_by_its_content(case: Case, tmp_path: Path) -> None:
    path = Path(case.written(tmp_path, 3))
    assert of([str(path)]).name == case.form.name

    unnamed = path.rename(tmp_path / "part-00000")
    assert of([str(unnamed)]).name == case.form.name
    if case.form.streams:
        assert of_beginning(unnamed.read_bytes(), "pipe").name == case.form.name
    for content_type in case.form.content_types:
        assert of([str(unnamed)], f"{content_type}; charset=utf-8").name == case.form.name


@every
def test_whatever_a_file_begins_with_is_looked_at_without_an_error(case: Case, tmp_path: Path) -> None:
    path = case.written(tmp_path, 2)
    beginning = Path(path).read_bytes()[:300]
    for cut in range(len(beginning)):
        for piece in (beginning[:cut], beginning[cut:], beginning[:cut] + b"\xff\x80" + beginning[cut:]):
            assert {form.recognizes(path, piece) for form in FORMATS} <= {True, False}


def test_importing_the_formats_loads_nothing_heavy() -> None:
    code = (
        "import sys, trainshed.data.formats.table as t\n"
        "print({'numpy', 'torch', 'pyarrow', 'PIL', 'google'} & set(sys.modules))"
    )
    environ = {"PYTHONPATH": str(Path(formats.__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)

    assert done.stdout.strip() == "set()", done.stderr
