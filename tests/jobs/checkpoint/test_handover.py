"""A library's checkpoint whose files lie on the disks of several hosts: each host gets what another one has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs.checkpoint.loops import Forge
from support.extras import needs

needs("torch")
pytestmark = [pytest.mark.torch, pytest.mark.safety]

# Arguments: checkpoint folder ({host} is filled in), what goes wrong. Ranks 0 and 1 share a disk; 2 has its own.
SCRIPT = """\
import os, sys
import torch.distributed as dist
from trainshed.checkpoint import CheckpointError, peer_copy as handover
from trainshed.checkpoint.guard import Guard

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
folder = sys.argv[1].replace("{host}", "ab"[rank // 2])
os.makedirs(folder, exist_ok=True)
guard = Guard(folder)
guard.newest()

def library_saves(step):
    path = guard.path(step)
    os.makedirs(f"{path}/parts", exist_ok=True)
    open(f"{path}/random_{rank}", "w").write(f"{rank} of {step}")
    open(f"{path}/parts/{rank}", "wb").write(bytes([rank, step]) * 9_000_000)
    if rank == 0:
        open(f"{path}/model", "w").write(f"model of {step}")
        open(f"{path}/nothing", "w").close()

for step in (2, 4):
    guard.save(step, "", lambda: library_saves(step))
guard.close()
dist.barrier()
guard = Guard(folder)
if sys.argv[2] == "lost" and rank == 0:  # between the check and the sending
    send = handover.send
    def lose(path, *rest):
        if path.endswith("checkpoint-4/model") and os.path.exists(path):
            os.unlink(path)
        send(path, *rest)
    handover.send = lose
if sys.argv[2] == "no place" and rank == 2:
    open(f"{folder}/checkpoint-4/model.handed", "w").close()
    os.mkdir(f"{folder}/checkpoint-4/model")
try:
    path = guard.newest()
except CheckpointError as error:
    print(f"REFUSED {error}", flush=True)
else:
    found = sorted(os.path.relpath(f"{top}/{name}", path) for top, _, names in os.walk(path) for name in names)
    print("HAS", os.path.basename(path), *(name for name in found if not name.endswith(".manifest")), flush=True)
    print("MODEL", open(f"{path}/model").read(), flush=True)
    assert open(f"{path}/parts/0", "rb").read() == bytes([0, guard.saved_step]) * 9_000_000
    if sys.argv[2] == "saved again":
        guard.save(4, "", lambda: rank and library_saves(4))
        dist.barrier()
        print("NOW", *sorted(os.listdir(path)), flush=True)
guard.close()
dist.barrier()
dist.destroy_process_group()
"""


def hosts(forge: Forge, folder: Path, wrong: str = "") -> list[str]:
    env = [{"SM_CURRENT_HOST": f"algo-{rank // 2 + 1}"} for rank in range(3)]
    return forge.run(SCRIPT, [f"{folder}/{{host}}", wrong], 3, env)


def said(output: str, word: str) -> str:
    [line] = re.findall(rf"^{word} (.*)$", output, re.MULTILINE)
    return line


def test_every_host_has_all_files_before_a_library_loads(forge: Forge, tmp_path: Path) -> None:
    outputs = hosts(forge, tmp_path, "saved again")
    every = "model nothing parts/0 parts/1 parts/2 random_0 random_1 random_2"
    assert [said(output, "HAS") for output in outputs] == [f"checkpoint-4 {every}"] * 3
    assert {said(output, "MODEL") for output in outputs} == {"model of 4"}
    assert "checkpoint-4: 1 files" not in outputs[0] and "checkpoint-4: 2 files" in outputs[0]
    assert "checkpoint-4: 6 files (36.0 MB) came from other hosts" in outputs[2]
    assert "came from" not in outputs[1]
    # What was handed over is not of a later save of the same step.
    assert "model" not in said(outputs[2], "NOW").split() and "random_0" not in said(outputs[2], "NOW")


def test_a_file_that_is_lost_on_its_way_has_all_hosts_take_the_save_before(forge: Forge, tmp_path: Path) -> None:
    outputs = hosts(forge, tmp_path, "lost")
    assert {said(output, "MODEL") for output in outputs} == {"model of 2"}
    assert "checkpoint-4 passed over: it did not come whole from rank 0: model" in outputs[0]
    assert not (tmp_path / "b/checkpoint-4/model").exists()


def test_no_room_for_a_file_ends_the_job_on_all_ranks(forge: Forge, tmp_path: Path) -> None:
    outputs = hosts(forge, tmp_path, "no place")
    for output in outputs:
        assert "checkpoint-4/model, which rank 0 has, cannot be written: Is a directory" in said(output, "REFUSED")
    assert not list(tmp_path.rglob("*.handed"))
