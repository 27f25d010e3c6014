"""Folders as users have them: loops, pipes, what vanishes; and the same answers as glob where that comes to an end."""

from __future__ import annotations

import glob
import os
import socket
from pathlib import Path

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.machine import folders
from trainshed.machine.folders import FILE, GONE, SPECIAL, UNREADABLE, match, walk


def names(folder: Path, kind: str = FILE) -> list[str]:
    return sorted(found.name for found in walk(str(folder)) if found.kind == kind)


def written(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    return folder


@pytest.mark.safety
def test_links_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    data = written(tmp_path / "data", "a", "in/b", "in/deep/c")
    (data / "one").symlink_to(".")
    (data / "two").symlink_to(".")
    (data / "in/up").symlink_to(data)
    (data / "in/deep/up").symlink_to("..")
    (data / "elsewhere").symlink_to(written(tmp_path / "other", "d"))
    (data / "again").symlink_to(tmp_path / "other")
    assert names(data) == ["a", "again/d", "elsewhere/d", "in/b", "in/deep/c"]


@pytest.mark.safety
def test_links_that_double_at_every_level_are_refused(tmp_path: Path) -> None:
    """Thirty levels of two links each, none of them a circle: a billion ways to one file."""
    for level in range(30):
        (tmp_path / f"level{level}").mkdir()
        for name in ("one", "two"):
            (tmp_path / f"level{level}" / name).symlink_to(tmp_path / f"level{level + 1}")
    written(tmp_path, "level30/file")
    with pytest.raises(TrainshedError, match="lead to the same folders more than 1,000 times"):
        list(walk(str(tmp_path / "level0")))
    with pytest.raises(TrainshedError, match="lead to the same folders"):
        list(match(f"{tmp_path}/level0/**/*"))


def test_what_is_not_a_file_is_told_apart(tmp_path: Path) -> None:
    written(tmp_path, "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "nothing").symlink_to("nowhere")
    (tmp_path / "itself").symlink_to("itself")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        assert names(tmp_path) == ["file"]
        assert names(tmp_path, SPECIAL) == ["pipe", "socket", "zero"]
        assert names(tmp_path, GONE) == ["itself", "nothing"]
        assert sorted(match(f"{tmp_path}/*")) == [f"{tmp_path}/file"]


def test_what_vanishes_meanwhile_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "stays", "goes", "folder/inside")
    listed = folders.os.scandir

    def scandir(place: str) -> object:
        found = listed(place)
        (tmp_path / "goes").unlink(missing_ok=True)
        if place.endswith("folder"):
            raise FileNotFoundError(2, "No such file or directory", place)
        return found

    monkeypatch.setattr(folders.os, "scandir", scandir)
    assert names(tmp_path) == ["stays"]
    monkeypatch.setattr(folders.os, "scandir", listed)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    (found,) = walk(str(tmp_path / "missing"))
    assert (found.kind, found.reason) == (UNREADABLE, "No such file or directory")


@pytest.mark.parametrize(
    "pattern",
    ["*.csv", "**/*.csv", "**", "**/in/*.csv", "**/**/*.csv", "*/*.csv", "in/[ab].csv", "?.csv", ".*/x.csv", "**/.h.csv",
     "in/../*.csv", "*/", "[!a].csv", "nothing/*", "a.csv/*"],
)  # fmt: skip
def test_patterns_mean_what_they_mean_to_glob(tmp_path: Path, pattern: str) -> None:
    written(
        tmp_path, "a.csv", "b.csv", "in/a.csv", "in/b.csv", "in/in/c.csv", ".hidden/x.csv", ".h.csv", "in/.h.csv", "c.txt"
    )
    full = os.path.normpath(f"{tmp_path}/{pattern}")
    expected = sorted({path for path in glob.glob(full, recursive=True) if os.path.isfile(path)})
    assert sorted(match(full)) == expected


def test_a_pattern_over_circles_comes_to_an_end(tmp_path: Path) -> None:
    written(tmp_path, "d/a.csv", "d/in/b.csv")
    (tmp_path / "d/one").symlink_to(".")
    (tmp_path / "d/two").symlink_to(".")
    (tmp_path / "d/in/up").symlink_to("..")
    assert sorted(match(f"{tmp_path}/d/**/*.csv")) == [f"{tmp_path}/d/a.csv", f"{tmp_path}/d/in/b.csv"]
