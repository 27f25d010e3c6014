"""Tar archives: samples by stem, and archives that are damaged, strange or hostile."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.data_files import plain, samples, tar
from support.extras import needs
from trainshed.data.formats.errors import DataError, SampleError
from trainshed.data.formats.format import Counted
from trainshed.data.formats.tar import Tar, _count_plain

needs("numpy")

FORM = Tar()


def read(folder: Path, content: bytes) -> list[Any]:
    """The samples of an archive; counted by its headers, there are as many."""
    path = folder / "a.tar"
    path.write_bytes(content)
    found = [plain(FORM.sample(record)) for _, record in FORM.split(io.BytesIO(content), str(path))]
    assert FORM.count(str(path)).records == len(found)
    return found


def refused(folder: Path, content: bytes, words: str) -> None:
    """Both counting and reading refuse the archive."""
    path = folder / "a.tar"
    path.write_bytes(content)
    for ask in (lambda: FORM.count(str(path)), lambda: list(FORM.split(io.BytesIO(content), str(path)))):
        with pytest.raises(DataError, match=f"a.tar: record .*{words}"):
            ask()


def members(*infos: tarfile.TarInfo, **how: Any) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **how) as archive:
        for info in infos:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
        used = archive.offset
    return stream.getvalue()[:used] + bytes(1024)


def info(name: str, **fields: Any) -> tarfile.TarInfo:
    one = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(one, field, value)
    return one


def resized(archive: bytes, size: bytes, at: int = 0) -> bytes:
    """With another size in the header at `at`, and its checksum."""
    header = bytearray(archive[at : at + 512])
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return archive[:at] + bytes(header) + archive[at + 512 :]


def test_files_of_one_stem_are_a_sample(tmp_path: Path) -> None:
    content = tar({"a.jpg": b"1", "a.seg.PNG": b"2", "b.jpg": b"3", "d/b.jpg": b"4", "d/b.tar.gz": b"5"})

    assert read(tmp_path, content) == [
        {"__key__": "a", "jpg": b"1", "seg.png": b"2"},
        {"__key__": "b", "jpg": b"3"},
        {"__key__": "d/b", "jpg": b"4", "tar.gz": b"5"},
    ]


def test_what_belongs_to_no_sample_is_left_out(tmp_path: Path) -> None:
    content = tar({"README": b"x", "._a.jpg": b"x", "a.jpg": b"1", ".hidden": b"x", "a.txt": b"2"})

    assert read(tmp_path, content) == [{"__key__": "a", "jpg": b"1", "txt": "2"}]


def test_files_are_decoded_but_never_unpickled(tmp_path: Path) -> None:
    import numpy as np

    array, pickled = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(3))
    np.save(pickled, np.array([{}]), allow_pickle=True)
    files = {"a.json": b'{"x": 1}', "a.txt": "ö".encode(), "a.cls": b" 7\n", "a.npy": array.getvalue(), "a.pkl": b"\x80"}

    (found,) = read(tmp_path, tar(files))

    assert found == {"__key__": "a", "json": {"x": 1}, "txt": "ö", "cls": 7, "npy": [0, 1, 2], "pkl": b"\x80"}
    for name, data in (("a.npy", pickled.getvalue()), ("a.json", b"{"), ("a.cls", b"x"), ("a.txt", b"\xff"), ("b.npy", b"")):
        with pytest.raises(SampleError, match=r"has a file '.*' that cannot be decoded: "):
            FORM.sample({"__key__": "a", name.partition(".")[2]: data})


def test_long_names_of_every_kind_are_read(tmp_path: Path) -> None:
    name = "ö" * 90 + "/" + "n" * 150
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        assert [one["__key__"] for one in read(tmp_path, tar({f"{name}.a": b"1", f"{name}2.a": b"2"}, format=form))] == [
            name,
            f"{name}2",
        ]


def test_archives_that_follow_each_other_are_read_as_from_a_pipe(tmp_path: Path) -> None:
    one = tar({"a.x": b"1", "b.x": b"2"})

    assert [found["__key__"] for found in read(tmp_path, one + bytes(4096) + one + one)] == ["a", "b"] * 3


def test_padding_behind_the_end_may_be_cut(tmp_path: Path) -> None:
    content = tar({"a.x": b"1"}) + bytes(9000)

    assert len(read(tmp_path, content[: 3 * 512])) == 1
    refused(tmp_path, content + b"next archive", "damaged header: truncated")


@pytest.mark.parametrize("name", ["a.x", "__key__.__key__", "a.__key__"])
def test_a_name_that_is_there_twice_is_refused(name: str, tmp_path: Path) -> None:
    refused(tmp_path, members(info("z.x"), info(name), info(name)), "byte 1024 has two files|byte 512 has two files")


def test_files_of_a_sample_that_do_not_follow_each_other_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, tar({"a.jpg": b"1", "b.jpg": b"2", "a.cls": b"3"}), "2 at byte 2048 is the second one of 'a'")


@pytest.mark.safety
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_is_refused(kind: bytes, tmp_path: Path) -> None:
    link = info("b.x", type=kind, linkname="../../etc/passwd")

    refused(tmp_path, members(info("a.x"), link), "byte 512 is a link, 'b.x' to '../../etc/passwd'")


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, b"Z"])
def test_what_is_no_file_is_refused(kind: bytes, tmp_path: Path) -> None:
    refused(tmp_path, members(info("a.x", type=kind)), "neither a file nor a folder|damaged header")


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.x", "GNU.sparse.realsize": "512"}

    refused(tmp_path, members(info("a.x", pax_headers=headers, size=1024)), "sparse|cannot be read|damaged header")
    refused(tmp_path, members(info("a.x", type=tarfile.GNUTYPE_SPARSE)), "sparse")


@pytest.mark.parametrize(
    "size", [b"\x80" + b"\x7f" * 11, b"\xff" * 12, b"77777777777\0", b"00040000000000"[:12], b"garbage     "]
)
def test_a_size_that_nothing_has_is_refused(size: bytes, tmp_path: Path) -> None:
    whole = members(info("a.x", size=5), info("b.x", size=5))
    for at in (0, 1024):
        words = "claims to have|has a damaged header|cannot be read|is cut short"
        refused(tmp_path, resized(whole, size, at), f"at byte {at} ({words})")


@pytest.mark.safety
def test_an_extended_header_of_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    header = info("a.x", type=tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)

    refused(tmp_path, resized(header, b"10000000000\0") + bytes(4096), "claims to have 1073741824 bytes")


@pytest.mark.parametrize("record", [b"7 size=-5\n", b"11 size=-5\n", b"99 path=b\n", b"x", b"20 size=99999999999\n"])
def test_a_damaged_extended_header_is_refused(record: bytes, tmp_path: Path) -> None:
    extended = info("a.x", type=tarfile.XHDTYPE, size=len(record)).tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")

    refused(tmp_path, extended + members(info("a.x", size=5)), "")


def test_what_is_behind_a_damaged_header_is_not_lost_without_a_word(tmp_path: Path) -> None:
    whole = tar({"a.x": b"1", "b.x": b"2", "c.x": b"3"})

    refused(tmp_path, whole[:1024] + bytes([whole[1024] ^ 1]) + whole[1025:], "at byte 1024 has a damaged header")
    refused(tmp_path, whole[:2048], "is missing: the archive ends before its end mark")


def test_counting_reads_headers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar({f"{number}.bin": bytes(300_000) for number in range(4)}))
    read, pread = [], os.pread

    def watched(file: int, most: int, at: int) -> bytes:
        read.append(pread(file, most, at))
        return read[-1]

    monkeypatch.setattr(os, "pread", watched)
    assert FORM.count(str(path)).records == 4
    assert 4 * 512 <= sum(map(len, read)) < 300_000


def slow_count(path: str) -> Counted | str:
    """The records as tarfile sees them, or why it sees none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainshed.data.formats.tar._count_plain", lambda file: None)
        return count(path)


def count(path: str) -> Counted | str:
    try:
        return FORM.count(path)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_is_counted_fast_is_what_tarfile_counts(form: int, tmp_path: Path) -> None:
    draw, path = random.Random(form), tmp_path / "a.tar"
    kinds = {
        "plain": members(*(info(f"in/{n // 2}.{'ab'[n % 2]}", size=n * 97) for n in range(300)), format=form),
        "times": members(*(info(f"{n}.a", mtime=n + 0.5) for n in range(9)), format=form),
        "long": members(*(info(f"{'d' * 90}/{n}.a", size=3) for n in range(9)), format=form),
        "strange": members(info(".a"), info("b"), info("d.x/", type=tarfile.DIRTYPE), info("d.x/c.a"), format=form),
        "foreign": members(info("\u00e4.a"), info("\u00e4.b"), format=form),
        "twice": members(info("a.x"), info("a.x"), format=form),
        "back": members(info("a.x"), info("b.x"), info("a.y"), format=form),
        "empty": members(format=form),
    }
    fast = 0
    for kind, whole in kinds.items():
        spoilt = [whole[: draw.randrange(len(whole))] for _ in range(10)] + [
            whole + whole,
            whole + b"x",
            whole + bytes(1 << 21),
        ]
        for _ in range(40):
            other = bytearray(whole)
            other[draw.randrange(len(other)) // 512 * 512 + draw.choice([draw.randrange(512), 0, 124, 156, 257])] = (
                draw.randrange(256)
            )
            spoilt.append(bytes(other))
        for content in (whole, *spoilt):
            path.write_bytes(content)
            assert count(str(path)) == slow_count(str(path)), (kind, form)
        path.write_bytes(whole)
        with open(path, "rb") as stream:
            fast += _count_plain(stream.fileno()) is not None
    assert fast >= 3


def test_an_archive_that_is_packed_as_tgz_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(info("a.cls", size=1), io.BytesIO(b"3"))

    assert samples(FORM, str(path)) == [{"__key__": "a", "cls": 3}]
