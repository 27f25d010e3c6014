"""Fingerprints: the same for the same data wherever it lies, another for other data, and an end whatever is there."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.paths import TOOLKIT
from support.powerless import heed_permissions
from trainshed.machine import fingerprint
from trainshed.machine.fingerprint import Fingerprint, of_files, of_folder, of_objects


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a file in each of two levels, an empty one, and one that is larger than its sampled places."""
    folder = tmp_path / "data"
    (folder / "in").mkdir(parents=True)
    (folder / "a.csv").write_bytes(b"1,2\n")
    (folder / "empty").touch()
    (folder / "in/large").write_bytes(bytes(100_000))
    return folder


def digest(folder: Path, method: str = fingerprint.SAMPLED) -> str:
    return of_folder(str(folder), method).digest


@pytest.mark.parametrize("method", ["sampled", "whole", "listed"])
def test_the_digest_is_what_its_definition_says(data: Path, method: str) -> None:
    """Worked out here a second time, from the words of the definition."""

    def content(name: str) -> bytes:
        held = (data / name).read_bytes()
        if method == "sampled" and len(held) > 12_288:
            held = held[:4096] + held[len(held) // 2 :][:4096] + held[-4096:]
        return b"-" if method == "listed" else hashlib.sha256(held).hexdigest()[:32].encode()

    (data / "in/large").write_bytes(os.urandom(50_001))
    text = b"trainshed-data-1 %b\n" % method.encode()
    for name in ("a.csv", "empty", "in/large"):
        text += b"%d %b %b\0" % ((data / name).stat().st_size, content(name), name.encode())

    found = of_folder(str(data), method)

    assert found.digest == f"{method}:{hashlib.sha256(text).hexdigest()[:32]}"
    assert (found.files, found.bytes) == (3, 50_005)
    assert found.read == (0 if method == "listed" else 3)


def test_path_times_permissions_links_and_empty_folders_do_not_count(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "elsewhere/copy")
    copy = tmp_path / "elsewhere/copy"
    os.utime(copy / "a.csv", (1, 1))
    (copy / "a.csv").chmod(0o600)
    (copy / "nothing").mkdir()
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "a.csv").symlink_to(data / "a.csv")
    (linked / "empty").symlink_to("../data/empty")
    (linked / "in").symlink_to(data / "in")

    assert digest(copy) == digest(linked) == digest(data)
    names = ["in/large", "a.csv", "empty"]
    assert of_files([(name, str(data / name)) for name in names]) == of_folder(str(data))


def _changed(path: Path, at: int) -> None:
    held = bytearray(path.read_bytes())
    held[at] ^= 1
    path.write_bytes(held)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte of a small file": lambda data: _changed(data / "a.csv", 2),
    "the first byte of a large file": lambda data: _changed(data / "in/large", 0),
    "a byte in its middle": lambda data: _changed(data / "in/large", 50_000),
    "its last byte": lambda data: _changed(data / "in/large", 99_999),
    "a byte more": lambda data: (data / "in/large").write_bytes(bytes(100_001)),
    "a renamed file": lambda data: (data / "a.csv").rename(data / "b.csv"),
    "a file in another folder": lambda data: (data / "a.csv").rename(data / "in/a.csv"),
    "an empty file more": lambda data: (data / "z").touch(),
    "an empty file less": lambda data: (data / "empty").unlink(),
    "two contents exchanged": lambda data: [
        (data / "empty").write_bytes(b"1,2\n"),
        (data / "a.csv").write_bytes(b""),
    ],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("method", ["sampled", "whole"])
def test_other_data_has_another_digest(data: Path, method: str, change: Callable[[Path], object]) -> None:
    before = digest(data, method)
    change(data)
    assert digest(data, method) != before


def test_what_lies_between_the_places_is_seen_by_whole_hashes_alone(data: Path) -> None:
    before = digest(data), digest(data, "whole")
    _changed(data / "in/large", 10_000)

    assert digest(data) == before[0]
    assert digest(data, "whole") != before[1]


def test_names_that_are_not_text_count_by_their_bytes(tmp_path: Path) -> None:
    def folder(at: str, *names: bytes) -> Path:
        (tmp_path / at).mkdir()
        for name in names:
            (tmp_path / at / os.fsdecode(name)).touch()
        return tmp_path / at

    latin = folder("1", b"gr\xfcn", b"a\nb")
    assert digest(latin).startswith("sampled:")
    assert digest(latin) == digest(folder("2", b"a\nb", b"gr\xfcn"))
    assert digest(latin) != digest(folder("3", "grün".encode(), b"a\nb"))
    # Two names must not pass for one with a line end in it.
    assert digest(folder("4", b"x", b"y")) != digest(folder("5", b"x\n0 - y"))


def test_pipes_devices_and_links_to_nothing_are_told_and_do_not_count(data: Path) -> None:
    before = digest(data)
    os.mkfifo(data / "pipe")
    (data / "lost").symlink_to("nowhere")
    (data / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(data / "s"))

    found = of_folder(str(data))

    assert found.digest == before
    assert found.notes == ("does not count, not files: lost, null, pipe and 1 more",)


def test_circles_of_links_end(data: Path) -> None:
    before = digest(data)
    (data / "in/up").symlink_to("..")
    assert digest(data) == before

    (data / "in/up").unlink()
    level = data
    for _ in range(30):  # two links each: a billion ways
        (level / "d").mkdir()
        (level / "e").symlink_to("d")
        level = level / "d"
    found = of_folder(str(data))
    assert found.digest == "" and "lead to the same folders" in found.notes[0]


HOSTILE = """
import sys
from trainshed.machine.fingerprint import of_folder
found = of_folder(sys.argv[1])
print(found.digest.partition(":")[0], found.files, found.notes)
"""


def test_files_and_folders_that_cannot_be_read_make_it_incomplete(data: Path) -> None:
    (data / "a.csv").chmod(0)
    (data / "in").chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", HOSTILE, str(data)], env={"PYTHONPATH": str(TOOLKIT)}, capture_output=True, text=True,
            preexec_fn=heed_permissions,
        )  # fmt: skip
    finally:
        (data / "in").chmod(0o755)
    said = "cannot be read: in: Permission denied, a.csv: Permission denied"
    assert done.stdout == f"incomplete 2 ('{said}',)\n", done.stderr


@pytest.mark.parametrize("how", ["grows", "shrinks", "goes", "becomes a pipe", "is written to"])
@pytest.mark.parametrize("method", ["sampled", "whole"])
def test_a_file_that_changes_meanwhile_is_told(data: Path, method: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    large = data / "in/large"
    whole = digest(data, method)
    real = os.pread
    done: list[str] = []

    def pread(file: int, count: int, at: int) -> bytes:
        if os.fstat(file).st_size == 100_000 and not done:
            done.append(how)
            if how == "is written to":
                large.write_bytes(bytes(100_000))
                os.utime(large, ns=(1, 1))
            else:
                os.truncate(large, 200_000 if how == "grows" else 10)
        return real(file, count, at)

    if how in ("grows", "shrinks", "is written to"):
        monkeypatch.setattr(os, "pread", pread)
    else:
        real_open = os.open

        def swapped(path: str, flags: int) -> int:
            if path.endswith("large"):
                large.unlink(missing_ok=True)
                if how == "becomes a pipe":
                    os.mkfifo(large)
            return real_open(path, flags)

        monkeypatch.setattr(os, "open", swapped)

    found = of_folder(str(data), method)

    assert found.method == "incomplete" and found.digest.partition(":")[2] != whole.partition(":")[2]
    assert found.notes[0].startswith("cannot be read: in/large: ")


def test_of_many_files_some_are_opened_the_same_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "MOST_SAMPLED", 3)
    names = [f"{number}.txt" for number in range(10)]
    for name in names:
        (tmp_path / name).write_text("x")
    chosen = sorted(names, key=lambda name: zlib.crc32(name.encode()))[:3]

    found = of_folder(str(tmp_path))

    assert (found.files, found.read, found.notes) == (10, 3, ("the contents of 3 of 10 files count",))
    for name in names:
        (tmp_path / name).write_text("y")
        assert (digest(tmp_path) == found.digest) is (name not in chosen)
        (tmp_path / name).write_text("x")
    (tmp_path / names[0]).write_text("longer")  # sizes count for all
    assert digest(tmp_path) != found.digest


def test_of_too_many_files_the_first_count_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "MOST_FILES", 2)
    for name in "dcba":
        (tmp_path / name).touch()

    found = of_folder(str(tmp_path))

    assert (found.method, found.files, found.notes) == ("part", 2, ("the first 2 files alone count",))
    (tmp_path / "d").unlink()
    assert digest(tmp_path) == found.digest
    assert of_folder(str(tmp_path), "whole").files == 3


def test_no_digest_where_there_is_no_time_for_one(data: Path) -> None:
    found = of_folder(str(data), seconds=-1.0)
    assert found.digest == "" and "cannot be looked at within" in found.notes[0]


def test_of_a_huge_file_with_holes_only_the_places_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 42)  # 4 TiB
    read: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, at: read.append(count) or real(file, count, at))

    assert of_folder(str(tmp_path)).bytes == 1 << 42
    assert sum(read) == 3 * 4096


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    found = of_folder(str(tmp_path / "gone"))
    assert found.method == "incomplete" and "No such file or directory" in found.notes[0]
    assert of_files([("a", str(tmp_path / "gone"))]).files == 0


def test_an_empty_folder_has_one(tmp_path: Path) -> None:
    assert of_folder(str(tmp_path)) == Fingerprint(
        f"sampled:{hashlib.sha256(b'trainshed-data-1 sampled' + bytes([10])).hexdigest()[:32]}"
    )


def test_objects_that_are_not_fetched_are_told_apart_by_their_etags() -> None:
    objects = [("b", 2, '"22"'), ("a", 1, '"11-3"')]
    told = of_objects(objects)
    text = b"trainshed-data-1 etags\n"
    for name, size, tag in (("a", 1, "11-3"), ("b", 2, "22")):
        text += b"%d %b %b\0" % (size, hashlib.sha256(tag.encode()).hexdigest()[:32].encode(), name.encode())

    assert told == Fingerprint(f"etags:{hashlib.sha256(text).hexdigest()[:32]}", 2, 3, 0)
    assert of_objects(objects[::-1]) == told
    assert of_objects([("b", 2, "33"), objects[1]]) != told
    assert of_objects([("b", 2, ""), objects[1]]).digest.startswith("listed:")
