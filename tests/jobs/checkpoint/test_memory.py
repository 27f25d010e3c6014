"""Copies of the state in the hosts' memory: used after a failure where they are whole, newest and this job's."""

from __future__ import annotations

import functools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.checkpoint.loops import Forge, train
from jobs.checkpoint.test_ranks import run_with
from trainshed.checkpoint import manifest as manifests
from trainshed.contract.wire.variables import TRAIN_ID
from trainshed.machine.scratch import SHARED_MEMORY, memory_folder

pytestmark = [pytest.mark.torch, pytest.mark.safety]

EACH_STEP = {"every_steps": 1, "copies": 1}
TRIES = 300


class Memory:
    """What several `train` keep in memory, by the numbers of their hosts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def environ(self, host: int) -> dict[str, str]:
        return {TRAIN_ID: f"{os.getpid()}-{self.name}{host}", "SM_CURRENT_HOST": f"algo-{host}"}

    def folder(self, host: int) -> Path:
        return Path(memory_folder(self.environ(host)))

    def steps(self, host: int = 0) -> list[int]:
        return sorted(int(path.name[-12:]) for path in self.folder(host).glob("*-*"))

    def lose(self, *hosts: int) -> None:
        for host in hosts:
            shutil.rmtree(self.folder(host))


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    made = Memory(f"{random.getrandbits(32):x}")
    yield made
    for path in Path(SHARED_MEMORY).glob(f"trainshed-{os.getpid()}-{made.name}*"):
        shutil.rmtree(path)


@pytest.fixture
def here(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Memory:
    """This process is a rank on host 0."""
    for name, value in memory.environ(0).items():
        monkeypatch.setenv(name, value)
    return memory


@pytest.mark.exact
@pytest.mark.spine
def test_a_script_that_starts_again_goes_on_from_the_last_step(
    here: Memory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    straight = train(tmp_path / "straight", 30)
    train(tmp_path / "saved", 24, memory=EACH_STEP)
    assert here.steps() == [23, 24]
    assert train(tmp_path / "saved", 30, memory=EACH_STEP) == straight[24:]
    assert "resumed from memory, step 24" in capfd.readouterr().err
    assert here.steps() == [29, 30]


@pytest.mark.exact
def test_no_copy_that_is_damaged_stale_or_foreign_is_used(here: Memory, tmp_path: Path) -> None:
    straight = train(tmp_path / "straight", 26)
    saved, kept = tmp_path / "saved", tmp_path / "kept"
    train(saved, 24, memory=EACH_STEP)
    shutil.copytree(here.folder(0), kept)
    shutil.copytree(saved, tmp_path / "disk")
    chance = random.Random(41)
    for number in range(TRIES):
        for place, good in ((here.folder(0), kept), (saved, tmp_path / "disk")):
            shutil.rmtree(place)
            shutil.copytree(good, place)
        copies = sorted(here.folder(0).iterdir())
        harmed = copies if number % 3 == 0 else copies[1:]
        for copy in harmed:
            DAMAGES[number % len(DAMAGES)](chance, copy)
        resumed = train(saved, 26, memory=EACH_STEP, every_steps=1000)
        assert resumed == straight[-len(resumed) :], (number, harmed)
        assert resumed[0][0] - 1 == (21 if len(harmed) == 2 else 23), (number, harmed)


def _flip(chance: random.Random, copy: Path) -> None:
    file = chance.choice(sorted(copy.iterdir()))
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def _half_sent(chance: random.Random, copy: Path) -> None:
    file = chance.choice(sorted(copy.iterdir()))
    os.truncate(file, chance.randrange(file.stat().st_size))


def _lost(chance: random.Random, copy: Path) -> None:
    chance.choice(sorted(copy.iterdir())).unlink()


def _overwritten(chance: random.Random, copy: Path) -> None:
    """The next copy was being made in its place: blocks of zeros in the tensors."""
    file = next(copy.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    begin = chance.randrange(4096, len(data) - 600)
    data[begin : begin + 600] = bytes(byte ^ 0x55 for byte in data[begin : begin + 600])
    file.write_bytes(data)


def _resealed(chance: random.Random, copy: Path) -> None:
    """Whole, but of another job, of more ranks, or under the name of another step."""
    (path,) = copy.glob(f"*{manifests.SUFFIX}")
    sealed = manifests.read(str(path))
    other = chance.choice(
        [
            sealed.replace(run={**sealed.run, "owners": ["trainshed-1-abc-memory"]}),
            sealed.replace(run={}),
            sealed.replace(world_size=2),
            sealed.replace(parts=2),
            sealed.replace(part=1, parts=1),
            sealed.replace(step=sealed.step + chance.randrange(1, 5)),
        ]
    )
    manifests.write(str(copy), other)
    if other.part != sealed.part:
        path.unlink()


DAMAGES: tuple[Callable[[random.Random, Path], None], ...] = (_flip, _half_sent, _lost, _overwritten, _resealed)


def test_a_copy_that_is_older_than_the_checkpoint_on_disk_is_not_used(here: Memory, tmp_path: Path) -> None:
    train(tmp_path / "saved", 9, memory=EACH_STEP)
    stale = shutil.copytree(here.folder(0), tmp_path / "stale")
    train(tmp_path / "saved", 16, memory=EACH_STEP)
    here.lose(0)
    shutil.copytree(stale, here.folder(0))
    assert train(tmp_path / "saved", 20, memory=EACH_STEP)[0][0] == 15
    assert here.steps() == [19, 20]


@pytest.mark.parametrize("what", ["/dev/shm", "the host's memory"])
def test_too_little_memory_is_said_and_costs_nothing(
    here: Memory, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from trainshed.checkpoint import memory_copies as module

    if what == "/dev/shm":
        real, small = os.statvfs, SimpleNamespace(f_bavail=1, f_frsize=4096)
        monkeypatch.setattr(os, "statvfs", lambda path: small if path == str(here.folder(0)) else real(path))
    else:
        monkeypatch.setattr(module, "memory_limit", lambda: 5_000_000)
        monkeypatch.setattr(module, "memory_used", lambda: 4_900_000)
    train(tmp_path / "saved", 16, memory=EACH_STEP)
    said = capfd.readouterr().err
    assert "WARNING: no more copies in memory, checkpoints on disk alone: " + what in said
    assert said.count("WARNING") == 1
    assert here.steps() == []
    assert list(here.folder(0).iterdir()) == []


def test_without_train_there_are_no_copies_and_a_line_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "saved", 8, memory=EACH_STEP)
    assert "no copies in memory, checkpoints on disk alone: `train` keeps them" in capfd.readouterr().err


@pytest.fixture
def run(forge: Forge, memory: Memory) -> Callable[..., list[dict[str, Any]]]:
    """`run(kind, folder, steps, hosts, each)`: as many ranks on each host, copies after each step."""

    def run(kind: str, place: Path, steps: int, hosts: int, each: int = 1, wanted: str = '{"every_steps": 1}') -> Any:
        env = [{**memory.environ(number // each), "MEMORY": wanted} for number in range(hosts * each)]
        return run_with(forge, kind, place, steps, hosts * each, env=env)

    return functools.partial(run)


@pytest.mark.exact
@pytest.mark.parametrize(("kind", "each"), [("ddp", 1), ("fsdp", 2)])  # DDP adds four ranks' gradients in another order
def test_a_new_host_gets_its_part_from_the_neighbour(run: Any, memory: Memory, kind: str, each: int, tmp_path: Path) -> None:
    straight = run(kind, tmp_path / "straight", 15, 2, each, "null")
    run(kind, tmp_path / "saved", 13, 2, each)
    for lost in (1, 0):
        memory.lose(lost)
        resumed = run(kind, tmp_path / "saved", 14 if lost else 15, 2, each)
        assert {one["first"] for one in resumed} == {13 if lost else 14}
        assert any("came from other hosts' memory" in one["output"] for one in resumed)
    for before, after in zip(straight, resumed, strict=True):
        assert after["losses"] == before["losses"][14:]
        assert after["weights"] == before["weights"]
        assert after["moments"] == before["moments"]


def test_more_hosts_than_copies_may_not_be_lost(run: Any, memory: Memory, tmp_path: Path) -> None:
    run("fsdp", tmp_path / "saved", 13, 3)
    kept = memory.folder(0).parent / f"{memory.folder(0).name}-kept"
    shutil.copytree(memory.folder(0), kept)
    memory.lose(1, 2)
    resumed = run("fsdp", tmp_path / "saved", 14, 3)
    assert {one["first"] for one in resumed} == {10}
    assert "the copy in memory of step 13 passed over: no host has the part of ranks 1" in resumed[0]["output"]
    memory.lose(1)
    resumed = run("fsdp", tmp_path / "saved", 15, 3, 1, '{"every_steps": 1, "copies": 2}')
    assert {one["first"] for one in resumed} == {14}
    memory.lose(0, 1)
    assert {one["first"] for one in run("fsdp", tmp_path / "saved", 16, 3)} == {15}
    shutil.rmtree(kept)


def test_copies_of_another_number_of_ranks_are_not_used(run: Any, tmp_path: Path) -> None:
    run("ddp", tmp_path / "saved", 13, 2)
    assert {one["first"] for one in run("ddp", tmp_path / "saved", 14, 1)} == {10}


# A library that saves on the first rank alone. Arguments: the step to save, or nothing to look for the newest one.
LIBRARY = """\
import os, sys
from pathlib import Path
import torch.distributed as dist
from trainshed.checkpoint.memory_saves import memory_saves
from trainshed.contract.wire.checkpoint_memory import Memory
dist.init_process_group("gloo")
saves = memory_saves("/folder", Memory(), print)
for step in map(int, sys.argv[1:]):
    def save():
        place = Path(saves.root, f"checkpoint-{step}")
        place.mkdir(exist_ok=True)
        if dist.get_rank() == 0:
            (place / "model").write_bytes(b"m" * 20_000_000)
        (place / f"rng{dist.get_rank()}").write_text(str(step))
    saves.save(step, save, {})
if not sys.argv[1:]:
    copy = saves.newest()
    print("FOUND", copy and [copy.step, *sorted(path.name for path in Path(copy.path).iterdir() if path.suffix == "")])
saves.close()
dist.barrier()
"""


def test_a_librarys_save_outlives_the_host_that_made_it(forge: Forge, memory: Memory) -> None:
    env = [memory.environ(number) for number in range(2)]
    forge.run(LIBRARY, ["4", "5", "6"], 2, env)
    assert sorted(path.name for path in memory.folder(1).iterdir()) == ["checkpoint-5", "checkpoint-6"]
    memory.lose(0)
    damaged = memory.folder(1) / "checkpoint-6/model"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    for output in forge.run(LIBRARY, [], 2, env):
        assert "FOUND [5, 'model', 'rng0', 'rng1']" in output
