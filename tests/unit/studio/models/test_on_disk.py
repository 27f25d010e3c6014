"""A model store in a folder: disks that are full or cannot be written, and what others have put there."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from support.obstacles import read_only_disk, small_disk
from support.paths import TOOLKIT
from trainshed.base.errors import TrainshedError
from trainshed.contract.model_reference import reference_of
from trainshed.studio.models.contents import files_in
from trainshed.studio.models.storage import default_folder, storage_at
from trainshed.studio.models.store import ModelStore
from trainshed.studio.models.version import VersionMetadata

from .conftest import Maker

pytestmark = pytest.mark.safety


def store_in(folder: Path) -> ModelStore:
    return ModelStore(storage_at(str(folder), {}))


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, maker: Maker) -> None:
    with small_disk(tmp_path / "disk", 2) as disk:
        store = store_in(disk)
        first = maker.add(store, "digits", "one")
        with pytest.raises(TrainshedError, match=r"cannot write in the model store .*: No space left") as caught:
            store.add("digits", maker.files(weights="x" * (4 << 20)), VersionMetadata())

        assert "nothing was added" in caught.value.hint
        assert store.versions("digits") == ([first], {}) and store.verify(first) == []
        assert store.storage.names("digits/files") == [first.folder]
        assert maker.add(store, "digits", "two").number == 2


def test_a_store_that_cannot_be_written_is_read(tmp_path: Path, maker: Maker) -> None:
    with small_disk(tmp_path / "disk", 2) as disk:
        store = store_in(disk)
        version = maker.add(store, "digits", "one")
        if subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True).returncode != 0:
            pytest.skip("cannot mount it again")

        store.get(store.find(reference_of("digits")), str(tmp_path / "out"))
        assert store.verify(version) == []
        for change in (
            lambda: maker.add(store, "digits", "two"),
            lambda: store.set_stage(version, "champion"),
            lambda: store.set_tag(version, "a", "b"),
            lambda: store.remove(version),
        ):
            with pytest.raises(TrainshedError, match=r"cannot write in the model store .*: Read-only file system"):
                change()


def test_a_folder_to_which_nothing_can_be_written_gets_nothing(tmp_path: Path, maker: Maker) -> None:
    version = maker.add(store_in(tmp_path / "store"), "digits", "one")
    with read_only_disk(tmp_path / "disk") as disk, pytest.raises(TrainshedError, match="Read-only file system"):
        store_in(tmp_path / "store").get(version, str(disk / "out"))


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path, maker: Maker) -> None:
    store = store_in(tmp_path / "store")
    version = maker.add(store, "digits", "one")
    path = Path(store.address(version)) / "weights"
    path.unlink()
    (tmp_path / "secret").write_text("one")
    path.symlink_to(tmp_path / "secret")

    assert len(store.verify(version)) == 1
    with pytest.raises(TrainshedError, match="a link, which the store never makes"):
        store.get(version, str(tmp_path / "out"))


def test_a_link_in_place_of_a_versions_folder_is_removed_and_not_followed(tmp_path: Path, maker: Maker) -> None:
    store = store_in(tmp_path / "store")
    version = maker.add(store, "digits", "one")
    place = Path(store.address(version))
    kept = place.rename(tmp_path / "kept")
    place.symlink_to(kept)
    store.remove(version)

    assert (kept / "weights").read_text() == "one" and not place.is_symlink()


def test_a_writer_that_is_killed_leaves_no_half_version(tmp_path: Path, maker: Maker) -> None:
    """A process of its own ends without a word while it copies the second of two files."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("a")
    (source / "b").write_text("b")
    program = (
        "import os, sys\n"
        "from trainshed.studio.models import on_disk\n"
        "from trainshed.studio.models.contents import files_in\n"
        "from trainshed.studio.models.store import ModelStore\n"
        "from trainshed.studio.models.version import VersionMetadata\n"
        "storage = on_disk.OnDisk(sys.argv[1]); put = storage.put\n"
        "storage.put = lambda path, key: put(path, key) if path.endswith('a') else os.kill(os.getpid(), 9)\n"
        "ModelStore(storage).add('digits', files_in(sys.argv[2]), VersionMetadata())\n"
    )
    place = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", program, str(place), str(source)], env={**os.environ, "PYTHONPATH": str(TOOLKIT)}
    )
    store = store_in(place)

    assert done.returncode == -9 and len(store.storage.names("digits/files")) == 1
    assert store.models() == [] and store.versions("digits") == ([], {})
    assert store.add("digits", files_in(str(source)), VersionMetadata()).version.number == 1


def test_a_large_file_takes_no_memory(tmp_path: Path) -> None:
    """Of a limit that its bytes would exceed many times over."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(64 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = store_in(tmp_path / "store")
    version = store.add("digits", [("large", str(large))], VersionMetadata()).version
    store.get(version, str(tmp_path / "out"))

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 24 << 10  # KiB
    assert (tmp_path / "out/large").stat().st_size == 64 << 20


def test_links_of_a_folder_that_lead_outside_nowhere_or_to_a_pipe_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights").write_text("one")
    (folder / "sub/same").symlink_to("../weights")
    assert [name for name, _ in files_in(str(folder))] == ["sub/same", "weights"]

    for target, said in (("/etc/passwd", "leads outside of"), ("nothing", "leads nowhere")):
        link = folder / "link"
        link.symlink_to(target)
        with pytest.raises(TrainshedError, match=said):
            files_in(str(folder))
        link.unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(TrainshedError, match="is a pipe"):
        files_in(str(folder))


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainshedError, match="has no files"):
        files_in(str(tmp_path))


def test_where_the_store_is(tmp_path: Path) -> None:
    assert storage_at("", {"TRAINSHED_MODEL_STORE": str(tmp_path)}).shown == str(tmp_path)
    assert storage_at("", {"HOME": "/home/ann"}).shown == "/home/ann/.local/share/trainshed/models"
    assert default_folder({"XDG_DATA_HOME": "/data"}) == "/data/trainshed/models"
    with pytest.raises(TrainshedError, match="cannot hold a model store"):
        storage_at("https://host/models", {})
