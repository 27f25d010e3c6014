"""A copy on another storage: uploaded whole, the manifest last; fetched and verified where the disk here has nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.checkpoint.loops import names, train
from support.extras import needs
from support.lazy import Lazy
from trainshed.checkpoint import CheckpointError
from trainshed.checkpoint.remote import Remote

needs("fsspec")
fsspec = Lazy("fsspec")
pytestmark = [pytest.mark.safety, pytest.mark.torch]


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty prefix: one like an object store's, one on a file system."""
    place = f"memory://{tmp_path.name}/run" if request.param == "memory" else f"file://{tmp_path}/bucket/run"
    yield place
    system, root = fsspec.core.url_to_fs(place)
    if system.exists(root):
        system.rm(root, recursive=True)


def there(url: str) -> dict[str, list[str]]:
    """The files of each checkpoint on the storage."""
    system, root = fsspec.core.url_to_fs(url)
    steps = sorted(path.rpartition("/")[2] for path in system.ls(root, detail=False))
    return {step: sorted(path.rpartition("/")[2] for path in system.ls(f"{root}/{step}", detail=False)) for step in steps}


def test_every_checkpoint_is_there_too_and_old_ones_go(url: str, tmp_path: Path) -> None:
    train(tmp_path / "here", 30, copy_to=url, keep_last=2)
    assert there(url) == {name: sorted(os.listdir(tmp_path / "here" / name)) for name in names(tmp_path / "here")}
    assert list(there(url)) == ["step-000000000021", "step-000000000028"]


@pytest.mark.exact
def test_a_machine_with_an_empty_disk_goes_on_where_the_other_one_was(url: str, tmp_path: Path) -> None:
    straight = train(tmp_path / "straight", 30)
    train(tmp_path / "first", 23, copy_to=url)
    assert train(tmp_path / "second", 30, copy_to=url) == straight[21:]
    assert names(tmp_path / "second") == ["step-000000000021", "step-000000000028"]
    train(tmp_path / "third", 36, copy_to=url, keep_last=2, keep_every=14)  # old ones go that this disk never had
    assert list(there(url)) == [f"step-{step:012d}" for step in (14, 28, 35)]


def test_the_disk_here_counts_where_it_is_as_new(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "here", 16, copy_to=url)
    train(tmp_path / "here", 17, copy_to=url)
    assert "fetched" not in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["no manifest", "shorter", "other bits"])
def test_what_was_not_uploaded_whole_is_passed_over(
    url: str, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "first", 16, copy_to=url)
    system, root = fsspec.core.url_to_fs(url)
    newest = f"{root}/step-000000000014"
    (data,) = (path for path in system.ls(newest, detail=False) if path.endswith(".safetensors"))
    (manifest,) = (path for path in system.ls(newest, detail=False) if path.endswith(".manifest"))
    content = bytearray(system.cat_file(data))
    if damage == "no manifest":
        system.rm_file(manifest)
    elif damage == "shorter":
        system.pipe_file(data, bytes(content[:-9]))
    else:
        content[-3] ^= 16
        system.pipe_file(data, bytes(content))
    losses = train(tmp_path / "second", 9, copy_to=url)
    assert losses[0][0] == 8
    said = capsys.readouterr().err
    assert "step-000000000014 passed over: " in said and "fetched " in said
    assert names(tmp_path / "second") == ["step-000000000007"]


def test_a_storage_that_cannot_be_written_costs_the_copy_and_not_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bucket").mkdir()
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "bucket").touch()  # a file where a folder should be
    assert len(train(tmp_path / "here", 9, copy_to=f"file://{tmp_path}/bucket")) == 9
    said = capsys.readouterr().err
    assert f"WARNING: the checkpoint of step 7 is here alone: file://{tmp_path}/bucket/step-000000000007: " in said
    assert "no checkpoint" not in said
    assert names(tmp_path / "here") == ["step-000000000007"]


def test_a_storage_that_nothing_here_reaches_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere://x: .*install trainshed\[fsspec\]"):
        Remote("nowhere://x")
