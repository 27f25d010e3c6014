"""Packing: what is packed is what was there, and what is not is named. Nothing here is ever packed by halves."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.obstacles import small_disk, without_rights
from trainshed.machine import packing
from trainshed.machine.packing import CHANGED, Packed, changes, listed, pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    return made


def packed(folder: Path, progress: Callable[[int, int], None] = lambda files, size: None) -> Packed:
    entries, problems = listed(str(folder))
    assert not problems
    return pack(f"{folder.parent}/x.tar.gz", entries, progress)


def unpacked(folder: Path) -> dict[str, bytes | str]:
    """Name -> content (a link's target) of the archive's members."""
    with tarfile.open(f"{folder.parent}/x.tar.gz") as tar:
        return {
            one.name: one.linkname if one.issym() else tar.extractfile(one).read()  # type: ignore[union-attr]
            for one in tar
        }


def test_files_with_any_name_come_back_as_they_were(folder: Path) -> None:
    names = [
        "a\nb",
        "caf\u00e9",
        os.fsdecode(b"caf\xe9"),
        " ",
        "x" * 200,
        "-rf",
        "deep/" * 40 + "leaf",
        "tab\there",
        "\\",
        "*",
    ]
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"%d" % number)
    made = packed(folder)
    assert unpacked(folder) == {name: b"%d" % number for number, name in enumerate(names)}
    assert (made.files, made.lost) == (len(names), ())


def test_the_checksum_is_the_archives(folder: Path) -> None:
    (folder / "a").write_bytes(random.Random(0).randbytes(3 << 20))
    made = packed(folder)
    assert made.sha256 == hashlib.sha256((folder.parent / "x.tar.gz").read_bytes()).hexdigest()
    assert made.size == 3 << 20


def test_links_hard_links_sparse_files_and_circles_of_links(folder: Path, tmp_path: Path) -> None:
    (folder / "one").write_text("1")
    os.link(folder / "one", folder / "same")
    os.symlink("one", folder / "link")
    os.symlink(".", folder / "circle")
    os.symlink("loop", folder / "loop")
    with open(folder / "sparse", "wb") as file:
        file.truncate(5 << 20)
    made = packed(folder)
    with tarfile.open(folder.parent / "x.tar.gz") as tar:
        assert tar.getmember("same").islnk()
        tar.extractall(tmp_path / "out")
    assert (tmp_path / "out/same").read_text() == "1" and os.readlink(tmp_path / "out/circle") == "."
    assert (tmp_path / "out/sparse").read_bytes() == bytes(5 << 20)
    assert made.files == 6 and not made.lost


def test_what_is_no_file_is_left_out_and_told_what_it_is(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(folder)  # a socket's path must be short
    try:
        server.bind("socket")
    finally:
        os.chdir(here)
        server.close()
    (folder / "file").write_text("x")
    entries, _ = listed(str(folder))
    assert {entry.name: entry.special for entry in entries} == {"pipe": "a pipe", "socket": "a socket", "file": ""}
    packed(folder)
    assert unpacked(folder) == {"file": b"x"}


@pytest.mark.safety
def test_a_file_that_shrinks_while_it_is_packed_is_named_and_the_archive_stays_whole(folder: Path) -> None:
    (folder / "a").write_bytes(b"a" * (4 << 20))
    (folder / "b").write_text("b")
    made = packed(folder, lambda files, size: os.truncate(folder / "a", 1 << 20) if size < 3 << 20 else None)
    assert made.lost == (f"a: {CHANGED}",)
    assert unpacked(folder)["b"] == b"b"


def test_a_file_that_grows_or_is_written_to_while_it_is_packed_is_named(folder: Path) -> None:
    (folder / "a").write_bytes(b"a" * (2 << 20))

    def grow(files: int, size: int) -> None:
        with open(folder / "a", "ab") as file:
            file.write(b"more")

    assert packed(folder, grow).lost == (f"a: {CHANGED}",)
    before, _ = listed(str(folder))
    grow(0, 0)
    (folder / "new").write_text("n")
    after, _ = listed(str(folder))
    assert sorted(changes(before, after)) == [f"a: {CHANGED}", f"new: {CHANGED}"]


def test_a_file_that_vanishes_or_becomes_something_else_is_named(folder: Path) -> None:
    for name in ("a", "gone", "link", "pipe"):
        (folder / name).write_text(name)

    def change(files: int, size: int) -> None:
        for name in ("gone", "link", "pipe"):
            if not (folder / name).is_symlink() and (folder / name).is_file():
                (folder / name).unlink()
        if not os.path.lexists(folder / "pipe"):
            os.symlink("/etc/passwd", folder / "link")
            os.mkfifo(folder / "pipe")

    made = packed(folder, change)
    assert [line.split(":")[0] for line in made.lost] == ["gone", "link", "pipe"]
    assert unpacked(folder) == {"a": b"a"}


def test_what_cannot_be_read_or_listed_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "open").write_text("o")
    (folder / "closed").write_text("c")
    (folder / "closed").chmod(0)
    (folder / "locked").mkdir()
    (folder / "locked/inside").write_text("i")
    (folder / "locked").chmod(0)
    with without_rights():
        entries, problems = listed(str(folder))
        made = pack(f"{tmp_path}/x.tar.gz", entries)
    assert problems == ["locked: Permission denied"]
    assert made.lost == ("closed: Permission denied",)
    assert made.files == 1
    (folder / "locked").chmod(stat.S_IRWXU)


def test_a_full_disk_leaves_neither_half_an_archive_nor_an_older_one(folder: Path, tmp_path: Path) -> None:
    (folder / "noise").write_bytes(random.Random(0).randbytes(3 << 20))
    with small_disk(tmp_path / "disk", 2) as disk:
        (disk / "x.tar.gz").write_text("of another run")
        with pytest.raises(OSError, match="No space left on device"):
            pack(f"{disk}/x.tar.gz", listed(str(folder))[0])
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "more", "other"])
def test_an_archive_that_reads_back_differently_is_refused(folder: Path, damage: str) -> None:
    (folder / "a").write_bytes(random.Random(0).randbytes(100_000))
    (folder / "b").write_text("b")
    made = packed(folder)
    archive = folder.parent / "x.tar.gz"
    data = bytearray(archive.read_bytes())
    members = [("a", 100_000), ("b", 1)]
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "more":
        data += b"x"
    else:
        members = [("a", 100_000), ("c", 1)]
    archive.write_bytes(data)
    with pytest.raises(OSError, match="reads back differently"):
        packing._read_back(str(archive), members, made.sha256)


def test_many_small_files_are_counted_as_they_are_packed(folder: Path) -> None:
    for number in range(2000):
        (folder / str(number)).write_text("x")
    seen: list[int] = []
    assert packed(folder, lambda files, size: seen.append(files)).files == 2000
    assert seen == sorted(seen) and seen[-1] == 2000
