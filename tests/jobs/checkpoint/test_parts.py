"""One checkpoint of any name, written by several ranks: whole and verified, or not there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.checkpoint.loops import Forge, names
from support.lazy import Lazy
from trainshed.checkpoint import CheckpointError, folder

torch = Lazy("torch")
parts = Lazy("trainshed.checkpoint.tensor_folder")
pytestmark = [pytest.mark.safety, pytest.mark.torch]

# Arguments: what to do, the checkpoint ({rank} is filled in), what goes wrong or the URL of copies.
SCRIPT = """\
import errno, json, os, sys
import torch
import torch.distributed as dist
from trainshed.checkpoint import CheckpointError
from trainshed.checkpoint import tensor_folder as parts

action, path, option = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
path = path.replace("{rank}", str(rank))
group = None
if world > 1:
    dist.init_process_group("gloo")
    group = dist.new_group(backend="gloo")
whole = torch.arange(24.0).reshape(6, 4)

def sharded():
    if world == 1:
        return torch.zeros(6, 4)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    return distribute_tensor(torch.zeros(6, 4), init_device_mesh("cpu", (world,)), [Shard(0)])

result = {}
try:
    if action == "save":
        value = float(option) if option.isdecimal() else 1.0
        tensors = {"everywhere": torch.full((3,), value), f"stage{rank}": torch.full((2, 5), value + rank)}
        spread = sharded()
        if world > 1:
            spread.to_local().copy_(whole.chunk(world)[rank])
        else:
            spread.copy_(whole)
        tensors["spread"] = spread
        objects = {"rank": rank, "groups": [{"lr": 0.5, "params": ["a"]}]}
        if option == "odd" and rank == world - 1:
            class Odd:
                pass
            sys.modules["odd"] = type(sys)("odd")
            Odd.__module__, Odd.__qualname__, sys.modules["odd"].Odd = "odd", "Odd", Odd
            objects["odd"] = Odd()
        if option == "full disk" and rank == world - 1:
            def full(path, *_):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            import trainshed.checkpoint.save
            trainshed.checkpoint.save.write_durable = full
        copy_to = option if "://" in option else ""
        parts.save(path, tensors, objects, step=7, copy_to=copy_to, group=group)
    else:
        saved = parts.load(path, copy_to=option, group=group)
        tensors = {key: torch.zeros(shape, dtype=dtype) for key, (dtype, shape) in saved.stored.items() if key != "spread"}
        tensors["spread"] = sharded()
        saved.fill(tensors)
        spread = tensors["spread"]
        tensors["spread"] = spread.full_tensor() if hasattr(spread, "full_tensor") else spread
        result = {"step": saved.step, "objects": {str(key): value for key, value in saved.objects.items()},
                  "right": torch.equal(tensors.pop("spread"), whole),
                  "values": {key: tensor.flatten()[0].item() for key, tensor in tensors.items()}}
except CheckpointError as error:
    result = {"error": str(error)}
print("RESULT " + json.dumps(result), flush=True)
if world > 1:
    dist.barrier(group)
    dist.destroy_process_group()
"""

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(forge: Forge) -> Run:
    """`run(action, path, ranks, option)`: each rank's result."""

    def run(action: str, path: object, ranks: int, option: str = "", hosts: bool = False) -> list[dict[str, Any]]:
        env = [{"SM_CURRENT_HOST": f"algo-{rank + 1}"} for rank in range(ranks)] if hosts else []
        results = []
        for output in forge.run(SCRIPT, [action, str(path), option], ranks, env):
            (line,) = re.findall(r"^RESULT (.*)$", output, re.MULTILINE)
            results.append(json.loads(line))
        return results

    return run


def test_what_three_ranks_write_any_number_reads(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "checkpoints/first_partial"
    assert run("save", path, 3) == [{}] * 3
    assert names(path.parent) == ["first_partial"]

    for ranks in (3, 1, 2):
        for result in run("load", path, ranks):
            assert result["right"] and result["step"] == 7
            assert result["values"] == {"everywhere": 1.0, "stage0": 1.0, "stage1": 2.0, "stage2": 3.0}
            assert [result["objects"][str(rank)]["rank"] for rank in range(3)] == [0, 1, 2]


def test_a_newer_checkpoint_replaces_the_older_one_of_its_name(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "latest"
    run("save", path, 2, "5")
    run("save", path, 2, "8")

    assert names(tmp_path) == ["latest"]
    assert run("load", path, 2)[1]["values"]["stage1"] == 9.0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [("full disk", "the disk is full"), ("odd", "an object of type odd.Odd cannot be stored in a checkpoint")],
)
def test_a_rank_that_fails_costs_the_save_and_not_the_older_checkpoint(
    run: Run, tmp_path: Path, wrong: str, why: str
) -> None:
    path = tmp_path / "latest"
    run("save", path, 2, "5")

    errors = {result["error"] for result in run("save", path, 2, wrong)}

    (error,) = errors  # the same on all ranks
    assert why in error and "(rank 1)" in error
    assert names(tmp_path) == ["latest"]
    assert run("load", path, 2)[0]["values"]["everywhere"] == 5.0


def test_what_a_killed_save_has_left_goes_with_the_next_one_of_that_name(run: Run, tmp_path: Path) -> None:
    for name in (".aside-latest-0123abcd1-0", ".gone-latest-77", ".aside-latest-2-0123abcd1-0", ".aside-other-01-0"):
        (tmp_path / name).mkdir()

    run("save", tmp_path / "latest", 1)

    assert names(tmp_path) == [".aside-latest-2-0123abcd1-0", ".aside-other-01-0", "latest"]


def test_a_flipped_bit_is_refused_on_all_ranks(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "latest"
    run("save", path, 2)
    (file, *_) = path.glob("*.rank1.safetensors")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)

    errors = {result["error"] for result in run("load", path, 2)}

    assert len(errors) == 1 and "is damaged between bytes" in errors.pop()
    assert "No such file" in run("load", tmp_path / "nothing", 1)[0]["error"]


def test_parts_of_hosts_with_disks_of_their_own_make_one_checkpoint(run: Run, tmp_path: Path) -> None:
    run("save", f"{tmp_path}/disk{{rank}}/latest", 2, hosts=True)
    alone = run("load", tmp_path / "disk0/latest", 1)[0]["error"]
    assert "only 1 of its 2 parts are here" in alone

    shutil.copytree(tmp_path / "disk1/latest", tmp_path / "disk0/latest", dirs_exist_ok=True)

    assert run("load", tmp_path / "disk0/latest", 1)[0]["values"]["stage1"] == 2.0


def test_a_host_with_an_empty_disk_fetches_the_copy(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs the extra trainshed[fsspec]")
    url = f"file://{tmp_path}/bucket/run"
    run("save", tmp_path / "here/latest", 2, url)

    (result, _) = run("load", tmp_path / "elsewhere/latest", 2, url)

    assert result["right"] and result["values"]["stage1"] == 2.0
    assert names(tmp_path / "elsewhere") == ["latest"]
    missing = run("load", tmp_path / "elsewhere/other", 1, url)[0]["error"]
    assert f"{url}/other: there is no copy" in missing


def test_pruning_keeps_the_newest_whole_ones_and_all_that_does_not_belong(tmp_path: Path) -> None:
    for name in ("a_partial", "b_partial", "c_partial", "other"):
        parts.save(tmp_path / name, {"x": torch.ones(2)}, {"name": name})
    (tmp_path / "d_partial").mkdir()  # not a checkpoint

    gone = parts.prune(tmp_path, keep=1, belongs=lambda name: name.endswith("_partial"))

    assert gone == ["b_partial", "a_partial"]
    assert names(tmp_path) == ["c_partial", "d_partial", "other"]
    with pytest.raises(ValueError, match="at least 1"):
        parts.prune(tmp_path, keep=0, belongs=lambda _: True)


def test_objects_that_could_not_be_loaded_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="an object cannot be stored in a checkpoint"):
        parts.save(tmp_path / "x", {}, {"loss": lambda: 0})

    assert names(tmp_path) == []


def test_a_name_that_is_taken_changes_in_one_step_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(content: str) -> tuple[Path, Path]:
        final, aside = tmp_path / "final", tmp_path / ".aside-final-0-0"
        aside.mkdir()
        (aside / "content").write_text(content)
        return final, aside

    seen: list[list[str]] = []
    rename = folder.os.rename
    monkeypatch.setattr(folder.os, "rename", lambda *paths: (rename(*paths), seen.append(names(tmp_path))))
    folder.replace(*map(str, two("first")))
    folder.replace(*map(str, two("second")))
    assert (tmp_path / "final/content").read_text() == "second"
    assert seen == [["final"]]  # the first one; at no moment later is there neither

    monkeypatch.setattr(folder, "_exchange", lambda *_: False)  # an older file system
    folder.replace(*map(str, two("third")))
    assert (tmp_path / "final/content").read_text() == "third"
    assert len(seen) == 3 and names(tmp_path) == ["final"]
    assert "final" in seen[2]  # what had the name is deleted when the name is there again


@pytest.mark.parametrize("left", [("gone",), ("gone", "aside")])
def test_a_name_that_a_kill_took_between_two_renames_is_recovered(
    left: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, value = tmp_path / "checkpoint", torch.zeros(3)
    parts.save(path, {"value": torch.full((3,), 1.0)})
    path.rename(tmp_path / ".gone-checkpoint-17")
    if "aside" in left:
        parts.save(path, {"value": torch.full((3,), 2.0)})
        path.rename(tmp_path / ".aside-checkpoint-00ff1-0")
        (tmp_path / ".aside-checkpoint-00ff2-0").mkdir()  # incomplete

    parts.load(path).fill({"value": value})

    assert value.tolist() == [float(len(left))] * 3
    parts.save(path, {"value": value})
    assert names(tmp_path) == ["checkpoint"]


def test_a_checkpoint_is_read_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, value = tmp_path / "checkpoint", torch.zeros(3)
    parts.save(path, {"value": torch.ones(3)})

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("trainshed.checkpoint.ranks.Ranks.share_storage", refuse)
    parts.load(path).fill({"value": value})
    assert value.tolist() == [1.0] * 3
    with pytest.raises(CheckpointError, match="Read-only file system"):
        parts.load(path, copy_to=f"file://{tmp_path}/copies")
