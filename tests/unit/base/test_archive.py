"""Unpacking archives: good ones of every kind, and ones made to do harm."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainshed.base import archive
from trainshed.base.archive import unpack
from trainshed.base.errors import ProgramError

pytestmark = pytest.mark.safety

KINDS = {"w": tarfile.REGTYPE, "l": tarfile.SYMTYPE, "h": tarfile.LNKTYPE, "d": tarfile.DIRTYPE}
FILES = {"train.py": b"print('hi')\n", "src/model.py": b"x = 1\n" * 1000, "größe.txt": b"", "./dotted.py": b"y\n"}


def make_tar(path: Path, members: Iterable[tuple[str, str, Any]], mode: str = "w:gz") -> str:
    """A tar; a member is (name, kind, argument): w file with content, l symlink, h hard link, d folder, or a type byte."""
    with tarfile.open(path, mode) as tar:
        for name, kind, argument in members:
            member = tarfile.TarInfo(name)
            member.type = KINDS.get(kind, kind.encode())
            if kind == "w":
                member.size = len(argument)
                tar.addfile(member, io.BytesIO(argument))
            else:
                member.linkname = argument if kind in "lh" else ""
                tar.addfile(member)
    return str(path)


def make_zip(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(path, "w", compression) as zipped:
        for name, data in files.items():
            zipped.writestr(name, data)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where to unpack; what lies beside it must stay as it is."""
    (tmp_path / "around").mkdir()
    (tmp_path / "around/secret").write_text("secret")
    (tmp_path / "around/folder").mkdir()
    return tmp_path / "around/folder"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(path: str, folder: Path) -> str:
    """Why an archive is refused; nothing of it is outside the folder then."""
    with pytest.raises(ProgramError) as raised:
        unpack(path, str(folder))
    assert sorted(os.listdir(folder.parent)) == ["folder", "secret"]
    assert (folder.parent / "secret").read_text() == "secret"
    assert (folder.parent / "secret").stat().st_nlink == 1
    assert "\n" not in raised.value.message
    return raised.value.message.replace(path, "ARCHIVE")


# --- good archives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip", "no-ending"])
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip", "zip stored", "zip empty"])
def test_the_kind_is_told_by_content_and_not_by_name(name: str, mode: str, folder: Path, tmp_path: Path) -> None:
    files = {} if mode == "zip empty" else FILES
    if mode.startswith("zip"):
        path = make_zip(tmp_path / name, files, zipfile.ZIP_STORED if mode == "zip stored" else zipfile.ZIP_DEFLATED)
    else:
        path = make_tar(tmp_path / name, [(name, "w", data) for name, data in files.items()], mode)

    unpack(path, str(folder))

    assert contents(folder) == {os.path.normpath(name): data for name, data in files.items()}


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_format_of_tar_is_read(tar_format: int, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"x")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tar_format) as tar:
        tar.add(tmp_path / "train.py", arcname="./train.py")

    unpack(str(tmp_path / "a.tar.gz"), str(folder))

    assert contents(folder) == {"train.py": b"x"}


def test_a_tar_that_ends_with_a_zip_is_still_a_tar(folder: Path, tmp_path: Path) -> None:
    wheel = Path(make_zip(tmp_path / "x.whl", {"inner.txt": b"inner"})).read_bytes()

    unpack(make_tar(tmp_path / "a.tar", [("train.py", "w", b"x"), ("x.whl", "w", wheel)], "w"), str(folder))

    assert contents(folder) == {"train.py": b"x", "x.whl": wheel}


def test_execute_bits_are_kept_and_others_made_harmless(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, mode in {"run.sh": 0o755, "plain.py": 0o644, "setuid": 0o6777, "locked": 0o000}.items():
            member = tarfile.TarInfo(name)
            member.mode, member.uid, member.uname = mode, 12345, "nobody-here"
            tar.addfile(member)
        locked = tarfile.TarInfo("folder")
        locked.type, locked.mode = tarfile.DIRTYPE, 0o000
        tar.addfile(locked)
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname, hard.mode = tarfile.LNKTYPE, "plain.py", 0o644
        tar.addfile(hard)

    unpack(str(tmp_path / "a.tar"), str(folder))

    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in os.listdir(folder)}
    assert modes == {"run.sh": 0o755, "plain.py": 0o644, "setuid": 0o755, "locked": 0o600, "folder": 0o755, "hard": 0o644}
    assert {(folder / name).stat().st_uid for name in modes} == {os.getuid()}


def test_execute_bits_in_a_zip_are_kept(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for name, mode in {"run.sh": 0o755, "plain.py": 0o644}.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (stat.S_IFREG | mode) << 16
            zipped.writestr(member, b"x")

    unpack(str(tmp_path / "a.zip"), str(folder))

    assert os.access(folder / "run.sh", os.X_OK) and not (folder / "plain.py").stat().st_mode & 0o111


GOOD_LINKS = {
    "beside": [("a", "w", b"x"), ("link", "l", "a")],
    "up and down": [("d/e", "d", ""), ("f", "w", b"x"), ("d/e/link", "l", "../../f")],
    "to a folder": [("d", "d", ""), ("d/f", "w", b"x"), ("link", "l", "d")],
    "to a link": [("a", "w", b"x"), ("one", "l", "a"), ("two", "l", "./one")],
    "through a link": [("d/e", "d", ""), ("d/e/f", "w", b"x"), ("short", "l", "d/e"), ("link", "l", "short/../e/f")],
    "to nothing": [("link", "l", "not/there")],
    "to the folder itself": [("d", "d", ""), ("d/link", "l", "..")],
    "hard": [("a", "w", b"x"), ("d/hard", "h", "./a")],
    "hard twice": [("a", "w", b"x"), ("b", "h", "a"), ("c", "h", "a")],
}


@pytest.mark.parametrize("name", GOOD_LINKS)
def test_links_that_stay_inside_are_made(name: str, folder: Path, tmp_path: Path) -> None:
    unpack(make_tar(tmp_path / "a.tar.gz", GOOD_LINKS[name]), str(folder))

    inside = os.path.realpath(folder)
    for member, kind, _ in GOOD_LINKS[name]:
        if kind == "l":
            assert os.path.islink(folder / member)
            assert (os.path.realpath(folder / member) + "/").startswith(inside + "/")
        if kind == "h":
            assert (folder / member).read_bytes() == b"x"


def test_a_file_that_was_appended_again_has_its_last_content(folder: Path, tmp_path: Path) -> None:
    unpack(make_tar(tmp_path / "a.tar", [("a", "w", b"old"), ("a", "w", b"new")], "w"), str(folder))

    assert contents(folder) == {"a": b"new"}


# --- hostile archives ------------------------------------------------------------------------------------------------

DEEP = [("a/b/c", "d", ""), ("a/b/c/s", "l", "../../..")]  # s is the folder itself, three levels below its name
HOSTILE: dict[str, tuple[list[tuple[str, str, Any]], str]] = {
    "absolute": ([("/tmp/evil", "w", b"x")], "'/tmp/evil', which points outside"),
    "above": ([("../evil", "w", b"x")], "'../evil', which points outside"),
    "above from within": ([("a/../../evil", "w", b"x")], "points outside"),
    "above, Windows' way": ([("..\\evil", "w", b"x")], "points outside"),
    "symlink to an absolute place": (
        [("link", "l", "/etc/passwd")],
        "the link 'link' to '/etc/passwd', which points outside",
    ),
    "symlink above": ([("link", "l", "../secret")], "the link 'link' to '../secret', which points outside"),
    "symlink above from within": ([("d/link", "l", "../../secret")], "points outside"),
    "hard link to an absolute place": ([("link", "h", "/etc/passwd")], "which is not a file of the archive"),
    "hard link above": ([("link", "h", "../secret")], "which is not a file of the archive"),
    "hard link to what is not there": ([("link", "h", "a")], "which is not a file of the archive"),
    "hard link to a link": ([("a/b/l", "l", "../.."), ("l2", "h", "a/b/l")], "which is not a file of the archive"),
    "hard link through a link": ([*DEEP, ("h", "h", "a/b/c/s/../secret")], "which is not a file of the archive"),
    "file below a link": ([("d", "d", ""), ("link", "l", "d"), ("link/f", "w", b"x")], "'link/f' below a link"),
    "file below a link that comes later": ([("link/f", "w", b"x"), ("link", "l", "d")], "'link/f' below a link"),
    "chain of links": (
        [*DEEP, ("t", "l", "a/b/c/s/../secret")],
        "the link 't' to 'a/b/c/s/../secret', which points outside",
    ),
    "file written through a chain": ([*DEEP, ("t", "l", "a/b/c/s/../evil"), ("t", "w", b"x")], "points outside"),
    "file in the place of a link": ([("d", "d", ""), ("t", "l", "d/f"), ("t", "w", b"x")], "the link 't' more than once"),
    "link in the place of a file": ([("t", "w", b"x"), ("t", "l", "d")], "the link 't' more than once"),
    "link changed on the way": (
        [*DEEP, ("t", "l", "a/b/c/s/x"), ("a/b/c/s", "l", ".")],
        "the link 'a/b/c/s' more than once",
    ),
    "loop of links": ([("one", "l", "two"), ("two", "l", "one")], "points outside"),
    "character device": ([("null", tarfile.CHRTYPE.decode(), "")], "'null', a device or other special file"),
    "block device": ([("disk", tarfile.BLKTYPE.decode(), "")], "'disk', a device or other special file"),
    "FIFO": ([("pipe", tarfile.FIFOTYPE.decode(), "")], "'pipe', a device or other special file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_tar_that_would_do_harm_is_refused_as_a_whole(name: str, folder: Path, tmp_path: Path) -> None:
    members, message = HOSTILE[name]
    path = make_tar(tmp_path / "a.tar.gz", [("first.py", "w", b"x"), *members])

    assert message in refused(path, folder)
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("/tmp/evil", stat.S_IFREG | 0o644, "points outside"),
        ("../evil", stat.S_IFREG | 0o644, "points outside"),
        ("a\\..\\..\\evil", stat.S_IFREG | 0o644, "points outside"),
        ("link", stat.S_IFLNK | 0o777, "'link', a link or special file"),
        ("pipe", stat.S_IFIFO | 0o644, "'pipe', a link or special file"),
        ("disk", stat.S_IFBLK | 0o644, "'disk', a link or special file"),
    ],
)
def test_a_zip_that_would_do_harm_is_refused_as_a_whole(
    name: str, mode: int, message: str, folder: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("first.py", b"x")
        member = zipfile.ZipInfo(name)
        member.external_attr = mode << 16
        zipped.writestr(member, b"/etc/passwd")

    assert message in refused(str(tmp_path / "a.zip"), folder)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_larger_than_the_free_space_is_refused_before_it_fills_the_disk(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = bytes(3 << 20)
    path = (
        make_zip(tmp_path / "bomb.zip", {"a": half, "b": half})
        if kind == "zip"
        else make_tar(tmp_path / "bomb.tar.gz", [("a", "w", half), ("b", "w", half)])
    )
    assert os.path.getsize(path) < 100_000
    monkeypatch.setattr(archive.os, "statvfs", lambda _: SimpleNamespace(f_bavail=5 << 10, f_frsize=1 << 10))

    message = refused(path, folder)

    assert "ARCHIVE unpacks to at least 6 MB, but" in message and "has 5 MB free" in message
    assert os.listdir(folder) == []


def test_a_tar_bomb_is_refused_before_it_is_read_to_its_end(folder: Path, tmp_path: Path) -> None:
    member = tarfile.TarInfo("zeros")
    member.size = 1 << 60
    path = tmp_path / "bomb.tar"
    path.write_bytes(member.tobuf(format=tarfile.GNU_FORMAT) + bytes(4096))

    assert "unpacks to at least 1,152,921,504,607 MB" in refused(str(path), folder)


def test_endless_data_behind_the_last_member_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_AFTER_END", 1 << 20)
    path = Path(make_tar(tmp_path / "a.tar", [("a", "w", b"x")], "w"))
    path.write_bytes(path.read_bytes() + bytes(4 << 20))

    assert "goes on after the end of its last member" in refused(str(path), folder)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_too_many_members_are_refused(kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_MEMBERS", 3)
    names = [f"f{number}" for number in range(5)]
    path = (
        make_zip(tmp_path / "a.zip", dict.fromkeys(names, b""))
        if kind == "zip"
        else make_tar(tmp_path / "a.tar", [(name, "w", b"") for name in names], "w")
    )

    assert "has more than 3 members" in refused(path, folder)


# --- damaged archives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.3, 0.7, 0.98])
def test_an_archive_that_was_cut_off_is_told_to_be_unusable(mode: str, keep: float, folder: Path, tmp_path: Path) -> None:
    data = os.urandom(60_000)
    path = tmp_path / "a"
    if mode == "zip":
        make_zip(path, {"a": data, "b": data})
    else:
        make_tar(path, [("a", "w", data), ("b", "w", data)], mode)
    whole = path.read_bytes()
    # The last bytes of a plain tar are zeros that nobody needs.
    end = len(whole) if mode != "w" else 2 * (512 + 60_416)
    path.write_bytes(whole[: int(end * keep)])

    assert "ARCHIVE cannot be unpacked: " in refused(str(path), folder)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "zip"])
@pytest.mark.parametrize("place", [0.1, 0.4, 0.75])
def test_damage_in_the_middle_is_noticed(mode: str, place: float, folder: Path, tmp_path: Path) -> None:
    data = os.urandom(60_000)
    path = tmp_path / "a"
    if mode == "zip":
        make_zip(path, {"a": data, "b": data})
    else:
        make_tar(path, [("a", "w", data), ("b", "w", data)], mode)
    damaged = bytearray(path.read_bytes())
    damaged[int(len(damaged) * place)] ^= 0x10
    path.write_bytes(damaged)

    assert "ARCHIVE cannot be unpacked: " in refused(str(path), folder)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x1f\x8b\x08", b"print(1)\n", b"\xfd7zXZ\0", b"BZh9"])
def test_what_is_no_archive_is_told_so(content: bytes, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)

    message = refused(str(tmp_path / "a.tar.gz"), folder)

    assert message.startswith("ARCHIVE cannot be unpacked: ") and len(message) < 200


def test_an_archive_that_needs_a_password_is_told_so(folder: Path, tmp_path: Path) -> None:
    path = Path(make_zip(tmp_path / "a.zip", {"a": b"x"}))
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)

    assert "encrypted" in refused(str(path), folder)


def test_a_file_in_the_way_of_a_folder_is_an_error_of_the_system(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        unpack(make_tar(tmp_path / "a.tar", [("x", "w", b"1"), ("x/y", "w", b"2")], "w"), str(folder))
