"""Files on their way to a node and back: the actor's own methods, here without Ray between."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from trainshed.places.ray.mirror import FolderMirror, Listed
from trainshed.places.ray.node import HostActor, Incoming, NodeError
from trainshed.places.ray.shipping import Parcel, packed


@pytest.fixture
def node(tmp_path: Path) -> HostActor:
    """An actor whose tree is in the test's folder."""
    host = HostActor("", "algo-1")
    host.folder, host.tree = str(tmp_path / "node"), str(tmp_path / "node/ml")
    (tmp_path / "node/ml/out").mkdir(parents=True)
    return host


@pytest.fixture
def mirror(node: HostActor, tmp_path: Path) -> Callable[..., FolderMirror]:
    """A mirror of `out` on the node, with its home here."""

    def make(owned: dict[str, str] | None = None, host: str = "algo-1", **options: int) -> FolderMirror:
        def read(wanted: list[tuple[str, int, int]]) -> list[bytes | None]:
            return node.read([(f"out/{path}", first, count) for path, first, count in wanted])

        home = str(tmp_path / "home")
        return FolderMirror(partial(node.listing, "out"), read, home, {} if owned is None else owned, host, **options)

    return make


def test_a_folder_arrives_with_what_its_links_lead_to(node: HostActor, tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "deep/empty").mkdir(parents=True)
    (source / "large").write_bytes(os.urandom(300_000))
    (source / "name with ünïcode\n and a line").write_text("x")
    (source / ("long" * 60)).write_text("y")
    (source / "script").write_text("#!/bin/sh")
    (source / "script").chmod(0o755)
    (source / "link").symlink_to("large")
    (source / "folder").symlink_to("deep")
    (source / "loop").symlink_to(".")
    (source / "nowhere").symlink_to("gone")
    os.mkfifo(source / "pipe")
    for data, last in packed(Parcel(str(source), "ml/data", "data"), chunk=10_000):
        node.receive(0, data, last)

    there = Path(node.tree, "data")
    assert (there / "large").read_bytes() == (there / "link").read_bytes() == (source / "large").read_bytes()
    assert (there / "script").stat().st_mode & 0o111 and (there / "folder/empty").is_dir()
    names = {one.name for one in source.iterdir()} - {"loop", "nowhere", "pipe"}
    assert {one.name for one in there.iterdir()} == names


def test_a_node_that_cannot_hold_a_folder_says_so(node: HostActor, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(200_000))
    Path(node.tree, "data").mkdir()
    incoming = Incoming(node.folder)
    with pytest.raises(NodeError, match="Is a directory"):
        for data, last in packed(Parcel(str(tmp_path / "data"), "ml/data", "data"), chunk=10_000):
            incoming.take(data, last)


@pytest.mark.safety
def test_files_come_home_once_they_are_whole_and_go_when_the_node_removes_them(
    node: HostActor, mirror: Callable[..., FolderMirror], tmp_path: Path
) -> None:
    out, home = Path(node.tree, "out"), tmp_path / "home"
    (out / "step-1").mkdir()
    (out / "step-1/weights").write_bytes(os.urandom(9_000_000))
    (out / "step-1/small").write_text("a")
    (out / "latest").symlink_to("step-1")
    one = mirror()
    one.look()
    assert not home.exists()  # it may still be written
    one.look()
    assert (home / "step-1/weights").read_bytes() == (out / "step-1/weights").read_bytes()
    assert (home / "latest/small").read_text() == "a"
    assert (home / "step-1/small").stat().st_mtime_ns == (out / "step-1/small").stat().st_mtime_ns

    (out / "step-1/weights").unlink()
    (out / "step-1/small").unlink()
    one.look(last=True)
    assert list((home / "step-1").iterdir()) == []
    (out / "step-1").rmdir()
    (out / "step-2").mkdir()
    (out / "step-2/small").write_text("b")
    one.look(last=True)
    assert not (home / "step-1").exists() and (home / "step-2/small").read_text() == "b"


def test_a_file_that_changes_on_its_way_does_not_take_its_place(
    node: HostActor, mirror: Callable[..., FolderMirror], tmp_path: Path
) -> None:
    out, home = Path(node.tree, "out"), tmp_path / "home"
    (out / "weights").write_bytes(bytes(9_000_000))
    one = mirror()
    read = one.read

    def meddle(wanted: list[tuple[str, int, int]]) -> list[bytes | None]:
        with (out / "weights").open("ab") as file:
            file.write(b"more")
        return read(wanted)

    one.read = meddle
    one.look(last=True)
    assert list(home.iterdir()) == []
    one.read = read
    one.look(last=True)
    assert (home / "weights").read_bytes() == (out / "weights").read_bytes()


def test_large_files_wait_for_the_end(node: HostActor, mirror: Callable[..., FolderMirror], tmp_path: Path) -> None:
    Path(node.tree, "out/large").write_bytes(bytes(200))
    one = mirror(most=100)
    one.look()
    one.look()
    assert not (tmp_path / "home/large").exists()
    one.most = None
    one.look(last=True)
    assert (tmp_path / "home/large").stat().st_size == 200


def test_a_file_stays_the_first_hosts_and_the_others_are_clashes(
    node: HostActor, mirror: Callable[..., FolderMirror], tmp_path: Path
) -> None:
    owned: dict[str, str] = {}
    first, second = mirror(owned), mirror(owned, "algo-2")
    Path(node.tree, "out/last.pt").write_text("first")
    first.look(last=True)
    Path(node.tree, "out/last.pt").write_text("the second's")
    second.look(last=True)
    assert (tmp_path / "home/last.pt").read_text() == "first" and second.clashes == {"last.pt"}
    second.bring_clashes(str(tmp_path / "aside"))
    assert (tmp_path / "aside/last.pt").read_text() == "the second's"


HOSTILE: dict[str, Listed] = {
    "../up": ("file", 1, 0, 0o644, ""),
    "/etc/passwd": ("file", 1, 0, 0o644, ""),
    "a/../../b": ("file", 1, 0, 0o644, ""),
    "out": ("link", 1, 0, 0o777, "/etc"),
    "up": ("link", 1, 0, 0o777, "../.."),
    "there/file": ("file", 1, 0, 0o644, ""),
}


def test_what_would_lie_elsewhere_is_left_out(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "there").symlink_to(tmp_path)
    one = FolderMirror(lambda: HOSTILE, lambda wanted: [b"x" for _ in wanted], str(home), {}, "algo-1")
    one.look(last=True)
    assert sorted(one.left_out) == sorted(HOSTILE)
    assert [path.name for path in home.iterdir()] == ["there"] and not (tmp_path / "file").exists()
