"""What is on disk is whole or passed over: truncation, bit flips, leftovers, strangers, a full disk."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from jobs.checkpoint.loops import names, train
from trainshed.checkpoint import blocks, folder, manifest, save
from trainshed.checkpoint.manifest import Damaged

pytestmark = [pytest.mark.torch, pytest.mark.safety]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints, of the steps 7 and 14."""
    place = tmp_path_factory.mktemp("trained") / "checkpoints"
    train(place, 15)
    assert names(place) == ["step-000000000007", "step-000000000014"]
    return place


def verdict(path: Path) -> str:
    """Why a checkpoint must not be used, "" if it may."""
    try:
        folder.verify(folder.open_checkpoint(str(path)))
    except Damaged as error:
        return str(error)
    return ""


def data_files(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.iterdir())


def test_a_checkpoint_is_named_by_step_host_and_rank(trained: Path) -> None:
    newest = trained / "step-000000000014"
    host = next(name for name in names(newest) if name.endswith(".manifest")).removesuffix(".part0.manifest")
    assert names(newest) == [f"{host}.part0.manifest", f"{host}.rank0.objects", f"{host}.rank0.safetensors"]
    assert verdict(newest) == ""


def test_a_flipped_bit_is_noticed_at_any_of_64_places_of_every_file(trained: Path, tmp_path: Path) -> None:
    chance = random.Random(4)
    tried = 0
    for file in data_files(trained / "step-000000000014"):
        copy = tmp_path / file.name / "step-000000000014"
        shutil.copytree(file.parent, copy)
        good = file.read_bytes()
        for place in [0, len(good) - 1, *(chance.randrange(len(good)) for _ in range(62))]:
            bad = bytearray(good)
            bad[place] ^= 1 << chance.randrange(8)
            (copy / file.name).write_bytes(bad)
            assert verdict(copy), f"{file.name}, byte {place}"
            tried += 1
        (copy / file.name).write_bytes(good)
        assert verdict(copy) == ""
    assert tried == 3 * 64


def test_a_truncated_or_longer_file_is_noticed(trained: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    for file in data_files(trained / "step-000000000014"):
        copy = tmp_path / file.name / "step-000000000014"
        shutil.copytree(file.parent, copy)
        good = file.read_bytes()
        for size in [0, len(good) - 1, *(chance.randrange(len(good)) for _ in range(62))]:
            (copy / file.name).write_bytes(good[:size])
            assert verdict(copy), f"{file.name}, {size} bytes"
        (copy / file.name).write_bytes(good + b"\0")
        assert verdict(copy), file.name
        (copy / file.name).unlink()
        assert verdict(copy), file.name


@pytest.mark.spine
@pytest.mark.parametrize("what", [".safetensors", ".objects", ".manifest"])
def test_the_next_older_one_is_used_and_the_reason_said(
    what: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "checkpoints"
    shutil.copytree(trained, place)
    (file,) = (place / "step-000000000014").glob(f"*{what}")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    losses = train(place, 15)
    assert losses[0][0] == 8
    said = capsys.readouterr().err
    assert "step-000000000014 passed over: " in said
    assert file.name in said
    assert f"resumed from {place}/step-000000000007" in said
    assert verdict(place / "step-000000000014") == ""  # made again, in place of the damaged one


def test_strangers_and_leftovers_are_neither_used_nor_in_the_way(trained: Path, tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    shutil.copytree(trained, place)
    (place / "step-000000000099").mkdir()
    (place / "step-000000000099/model.pt").write_bytes(b"another program's")
    (place / "checkpoint-500").mkdir()
    (place / "notes.txt").write_text("mine")
    (place / ".aside-step-000000000021-abc-0").mkdir()
    (place / ".gone-step-000000000001-5").mkdir()
    (place / ".aside-probe-abc-0").touch()
    shutil.copytree(place / "step-000000000014", place / "step-000000000050")  # renamed by hand
    losses = train(place, 15)
    assert losses[0][0] == 15
    assert not [name for name in names(place) if name.startswith(".")]
    assert {"step-000000000099", "checkpoint-500", "notes.txt", "step-000000000050"} <= set(names(place))


def test_without_any_whole_one_the_run_starts_from_the_beginning_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "step-000000000005").mkdir()
    assert train(tmp_path, 1)[0][0] == 1
    said = capsys.readouterr().err
    assert "step-000000000005 passed over: there is no manifest" in said
    assert "starting from the beginning" in said


def test_a_model_that_has_changed_is_an_error_and_not_a_silent_start(trained: Path) -> None:
    import torch

    from trainshed.checkpoint import Checkpointer, CheckpointError

    with (
        Checkpointer(trained, model=torch.nn.Linear(3, 3)) as checkpointer,
        pytest.raises(CheckpointError, match=r"step-000000000014: the tensors of model have changed .*model/0\.bias"),
    ):
        checkpointer.restore()


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = train(tmp_path / "plain", 20)

    def full(path: str, *_: object) -> list[int]:
        if "step-000000000014" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return real(path, *_)  # type: ignore[arg-type]

    real = blocks.write_durable
    monkeypatch.setattr(save, "write_durable", full)
    assert train(tmp_path / "full", 22)[:20] == plain
    said = capsys.readouterr().err
    assert "WARNING: no checkpoint of step 14" in said
    assert "the disk is full; training goes on" in said
    assert names(tmp_path / "full") == ["step-000000000007", "step-000000000021"]


def test_too_little_room_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(save, "SPARE", 1 << 60)
    train(tmp_path, 9)
    assert "must stay free for the model, logs and the report, but" in capsys.readouterr().err
    assert names(tmp_path) == []


def test_any_other_error_of_the_writer_reaches_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.checkpoint import CheckpointError

    def broken(*_: object) -> list[int]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(save, "write_durable", broken)
    with pytest.raises(CheckpointError, match="a defect"):
        train(tmp_path, 30)


def test_a_file_is_written_as_it_is_with_and_without_direct_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap
    import zlib

    for direct in (True, False):
        if not direct:
            monkeypatch.setattr(blocks, "_set_direct", lambda fd, on: False)
        for size in (0, 1, blocks.ALIGN, blocks.BLOCK - 1, blocks.BLOCK + 5):
            memory = mmap.mmap(-1, blocks.padded(max(size, 1)))
            content = random.Random(size).randbytes(min(size, 1000)) * (size // 1000 + 1)
            memory[:size] = content[:size]
            path = tmp_path / f"{direct}-{size}"
            sums = blocks.write_durable(str(path), memoryview(memory), size)
            assert path.read_bytes() == content[:size]
            assert sums == [zlib.crc32(content[:size][at : at + blocks.BLOCK]) for at in range(0, size, blocks.BLOCK)]
            with pytest.raises(FileExistsError):
                blocks.write_durable(str(path), memoryview(memory), size)


def test_a_manifest_says_what_there_is(trained: Path) -> None:
    (path,) = (trained / "step-000000000014").glob("*.manifest")
    one = manifest.read(str(path))
    assert (one.step, one.parts, one.complete, one.world_size) == (14, 1, True, 1)
    assert {file.name: file.size for file in one.files} == {
        file.name: file.stat().st_size for file in path.parent.iterdir() if file != path
    }
    assert json.loads(path.read_text().splitlines()[0])["format"] == manifest.FORMAT
    assert os.stat(path).st_mode & 0o444 == 0o444
