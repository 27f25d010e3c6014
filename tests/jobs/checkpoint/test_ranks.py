"""Several ranks: one checkpoint written by all of them, loaded by any number of them."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.checkpoint.loops import Forge, names
from trainshed.checkpoint import folder

pytestmark = [pytest.mark.torch, pytest.mark.safety]

# Arguments: kind of model, checkpoint folder ({rank} is filled in), last step, what goes wrong.
SCRIPT = """\
import errno, json, os, sys
import torch
import torch.distributed as dist
from trainshed.checkpoint import Checkpointer, save

kind, place, steps, wrong = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
inner = model = torch.nn.Sequential(torch.nn.Linear(8, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))
if kind == "ddp" and world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
if kind == "fsdp" and world > 1:
    from torch.distributed.fsdp import fully_shard
    fully_shard(model[0])
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpointer = Checkpointer(
    place.replace("{rank}", str(rank)), model=model, optimizer=optimizer, every_steps=5, check_seconds=0.0,
    memory=json.loads(os.environ.get("MEMORY", "null")),
)
if wrong == "full disk" and rank == 1:
    def full(path, *_):
        raise OSError(errno.ENOSPC, "No space left on device", path)
    save.write_durable = full
if wrong == "no folder" and rank == 1:
    def refused(folder, *_):
        raise PermissionError(errno.EACCES, "Permission denied", folder)
    save.folders.make_aside, save.write_atomic = refused, refused
step = first = checkpointer.restore()
losses = []
while step < steps:
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(step))
    y = x.sum(1, keepdim=True).expand(-1, 5)
    share = slice(rank * 12 // world, (rank + 1) * 12 // world)
    loss = (model(x[share]) - y[share]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    losses.append(loss.item())
    if wrong == "signal" and rank == 1 and step == 8:
        os.kill(os.getpid(), 15)
    if checkpointer.step(step):
        break
checkpointer.close()

def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).tolist()

print("RESULT " + json.dumps({
    "first": first, "step": step, "losses": losses, "failures": checkpointer.failures,
    "weights": {name: whole(value) for name, value in inner.state_dict().items()},
    "moments": [whole(optimizer.state[parameter]["exp_avg_sq"]) for parameter in model.parameters()],
}), flush=True)
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""


Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(forge: Forge) -> Run:
    """`run(kind, folder, steps, ranks)`: what each rank came to."""
    return functools.partial(run_with, forge)


def run_with(
    forge: Forge,
    kind: str,
    place: object,
    steps: int,
    ranks: int,
    wrong: str = "",
    hosts: bool = False,
    env: Sequence[dict[str, str]] = (),
) -> list[dict[str, Any]]:
    env = [{"SM_CURRENT_HOST": f"algo-{rank + 1}"} for rank in range(ranks)] if hosts else env
    outputs = forge.run(SCRIPT, [kind, str(place), str(steps), wrong], ranks, env)
    results = []
    for output in outputs:
        (line,) = re.findall(r"^RESULT (.*)$", output, re.MULTILINE)
        results.append({**json.loads(line), "output": output})
    return results


@pytest.mark.exact
@pytest.mark.spine
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_ranks_is_loaded_by_two_one_and_three(run: Run, kind: str, tmp_path: Path) -> None:
    straight = run(kind, tmp_path / "straight", 15, 2)
    saved = tmp_path / "saved"
    run(kind, saved, 12, 2)
    assert names(saved) == ["step-000000000005", "step-000000000010"]
    for ranks in (2, 1, 3):
        place = tmp_path / f"by{ranks}"
        shutil.copytree(saved, place)
        resumed = run(kind, place, 15, ranks)
        assert {one["first"] for one in resumed} == {10}
        if ranks == 2:
            for before, after in zip(straight, resumed, strict=True):
                assert after["losses"] == before["losses"][10:]
                assert after["weights"] == before["weights"]
                assert after["moments"] == before["moments"]
        else:  # sums are taken in another order
            for name, value in resumed[0]["weights"].items():
                assert flat(value) == pytest.approx(flat(straight[0]["weights"][name]), abs=1e-5)


def flat(value: Any) -> list[float]:
    return [x for item in value for x in flat(item)] if isinstance(value, list) else [value]


def test_replicated_state_is_written_once_and_by_all_ranks(run: Run, tmp_path: Path) -> None:
    run("ddp", tmp_path / "two", 5, 2)
    run("ddp", tmp_path / "one", 5, 1)

    def tensors(place: Path) -> dict[str, int]:
        (checkpoint,) = folder.scan(str(place))[0]
        return {file.name: file.size for part in checkpoint.parts for file in part.files if "safetensors" in file.name}

    two, one = tensors(tmp_path / "two"), tensors(tmp_path / "one")
    assert len(two) == 2
    headers = 4096 * 3
    assert abs(sum(two.values()) - sum(one.values())) <= headers
    assert max(two.values()) - min(two.values()) < 0.25 * sum(two.values())


@pytest.mark.exact
def test_hosts_with_disks_of_their_own_each_hold_all_of_replicated_state(run: Run, tmp_path: Path) -> None:
    straight = run("ddp", tmp_path / "straight", 15, 2)
    place = tmp_path / "disk{rank}"
    run("ddp", place, 12, 2, hosts=True)
    assert names(tmp_path / "disk0") == names(tmp_path / "disk1")
    files = [names(tmp_path / f"disk{n}/step-000000000010") for n in range(2)]
    assert not set(files[0]) & set(files[1])  # one prefix may take the files of both
    resumed = run("ddp", place, 15, 2, hosts=True)
    assert [one["losses"] for one in resumed] == [one["losses"][10:] for one in straight]


def test_a_checkpoint_that_one_host_lacks_is_passed_over_by_all(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "disk{rank}"
    run("ddp", place, 12, 2, hosts=True)
    shutil.rmtree(tmp_path / "disk1/step-000000000010")
    resumed = run("ddp", place, 12, 2, hosts=True)
    assert [one["first"] for one in resumed] == [5, 5]
    assert "step-000000000010 passed over: not all hosts have it" in resumed[0]["output"]


def test_sharded_state_on_separate_disks_needs_all_parts_and_says_which_are_missing(run: Run, tmp_path: Path) -> None:
    run("fsdp", tmp_path / "disk{rank}", 6, 2, hosts=True)
    alone = run("fsdp", tmp_path / "disk{rank}", 1, 1)
    assert alone[0]["first"] == 0
    assert "only 1 of its 2 parts are here (those of algo-1)" in alone[0]["output"]
    # As a synchroniser does that knows one prefix for all hosts:
    together = tmp_path / "together"
    for n in range(2):
        shutil.copytree(tmp_path / f"disk{n}", together, dirs_exist_ok=True)
    assert run("fsdp", together, 6, 1)[0]["first"] == 5


def test_a_signal_to_one_rank_stops_all_of_them_at_the_same_step(run: Run, tmp_path: Path) -> None:
    ended = run("ddp", tmp_path, 100, 2, wrong="signal")
    (step,) = {one["step"] for one in ended}
    assert 8 <= step < 100
    assert names(tmp_path)[-1] == f"step-{step:012d}"
    assert "stopping after step" in ended[0]["output"]


def test_a_rank_that_can_leave_no_note_does_not_keep_the_others_waiting(run: Run, tmp_path: Path) -> None:
    """It cannot even make the folder in which it would say so: it says it past the storage."""
    ended = run("ddp", tmp_path, 12, 2, wrong="no folder")
    assert [rank["step"] for rank in ended] == [12, 12]
    assert [rank["failures"] for rank in ended] == [2, 2]
    assert re.search(r"no checkpoint of step 5: rank 1: \S+: Permission denied; training goes on", ended[0]["output"])
    assert names(tmp_path) == []


def test_a_full_disk_on_one_rank_costs_all_of_them_the_checkpoint_alone(run: Run, tmp_path: Path) -> None:
    ended = run("ddp", tmp_path, 12, 2, wrong="full disk")
    assert [one["step"] for one in ended] == [12, 12]
    assert names(tmp_path) == []
    assert all(one["failures"] == 2 for one in ended)
    assert "rank 1: " in ended[0]["output"]
    assert "the disk is full" in ended[0]["output"]


def test_other_programs_load_a_checkpoint_through_torch_distributed_checkpoint(run: Run, tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    from trainshed.checkpoint.dcp import Reader

    ended = run("fsdp", tmp_path, 5, 2)
    state = {f"model/{name}": torch.empty(torch.tensor(value).shape) for name, value in ended[0]["weights"].items()}
    dcp.load(state, storage_reader=Reader(tmp_path / "step-000000000005"), no_dist=True)
    assert {name[6:]: value.tolist() for name, value in state.items()} == ended[0]["weights"]


def test_an_outside_copy_taken_in_the_middle_is_never_used(run: Run, tmp_path: Path) -> None:
    run("ddp", tmp_path / "disk", 5, 2)
    whole = tmp_path / "disk/step-000000000005"
    for left_out in names(whole):
        copy = tmp_path / f"without-{left_out}" / whole.name
        shutil.copytree(whole, copy)
        os.unlink(copy / left_out)
        found, skipped = folder.scan(str(copy.parent))
        assert not found
        assert skipped[0].why


def test_a_folder_that_one_rank_cannot_write_fails_all_ranks_with_the_reason(forge: Forge, tmp_path: Path) -> None:
    (tmp_path / "disk1").touch()  # a file where a folder should be
    script = SCRIPT.replace(
        "checkpointer = Checkpointer(",
        "from trainshed.checkpoint import CheckpointError\n"
        "try:\n    Checkpointer(place.replace('{rank}', str(rank)), model=model)\n"
        "except CheckpointError as error:\n    print('RESULT', error, flush=True)\n    os._exit(0)\n"
        "checkpointer = Checkpointer(",
        1,
    )
    first, second = forge.run(script, ["plain", f"{tmp_path}/disk{{rank}}", "5", ""], 2)
    assert f"cannot be written to {tmp_path}/disk0: File exists (rank 1, in {tmp_path}/disk1);" in first
    assert f"cannot be written to {tmp_path}/disk1: File exists" in second


# Ranks with data of their own: whether their models stay the same is DistributedDataParallel's business. Buffers never are.
APART = """\
import os, sys
import torch
import torch.distributed as dist
from trainshed.checkpoint import Checkpointer, CheckpointError

kind, place = sys.argv[1:]
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(rank if kind == "seeds" else 0)
model = torch.nn.Sequential(torch.nn.Linear(8, 33), torch.nn.BatchNorm1d(33), torch.nn.Linear(33, 5))
if kind == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0 if kind == "seeds" else 0.1)
checkpointer = Checkpointer(place, model=model, optimizer=optimizer, every_steps=2, check_seconds=0.0)
assert checkpointer.restore() == 0
try:
    for step in (1, 2):
        optimizer.zero_grad()
        model(torch.randn(12, 8, generator=torch.Generator().manual_seed(10 * step + rank))).pow(2).mean().backward()
        optimizer.step()
        checkpointer.step(step)
    checkpointer.wait()
    print("SAID saved")
except CheckpointError as error:
    print("SAID", error)
checkpointer.close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["seeds", "no ddp"])
def test_replicas_that_have_drifted_apart_are_not_saved_as_a_mixture(forge: Forge, kind: str, tmp_path: Path) -> None:
    outputs = forge.run(APART, [kind, str(tmp_path / "kept")], 2, [])

    said = {re.findall(r"^SAID (.*)$", output, re.MULTILINE)[0] for output in outputs}
    (one,) = said
    assert re.match(
        r"model/\S+ is not the same on ranks 0 and 1: the checkpoint would be a mixture of their models\. Wrap", one
    )
    assert names(tmp_path / "kept") == []


def test_replicas_with_other_buffers_are_saved(forge: Forge, tmp_path: Path) -> None:
    outputs = forge.run(APART, ["ddp", str(tmp_path / "kept")], 2, [])

    assert all("SAID saved" in output for output in outputs)
    assert names(tmp_path / "kept") == ["step-000000000002"]


@pytest.mark.parametrize(
    ("theirs", "differs"),
    [
        ([1.0, -2.0, 0.5], False),
        ([1.00001, -2.0, 0.5], False),  # GPUs of two kinds
        ([1.0, -2.0, 0.51], True),
        ([1.0, -2.0, float("nan")], True),
        ([0.0, 0.0, 0.0], True),
    ],
)
def test_rounding_is_not_drift(theirs: list[float], differs: bool) -> None:
    from trainshed.checkpoint.replicas import first_difference

    own = {"model/w": [1.0, -2.0, 0.5], "model/only here": [1.0]}
    found = first_difference([own, {"model/w": theirs}, {"model/z": [3.0]}])
    assert found == (("model/w", 0, 1) if differs else None)
    assert first_difference([{"model/n": [float("nan")]}] * 2) is None
