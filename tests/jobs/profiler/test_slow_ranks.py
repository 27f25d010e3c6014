"""Jobs in which one rank is slow for a while: who is named, when by its steps, for what, and who is not."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.hosts import Hosts, ended

pytestmark = pytest.mark.torch

# A rank sleeps where it would compute, so that a busy machine changes little. `do` says how it goes on: rank 0 reads it.
SCRIPT = """\
import argparse, os, random, subprocess, sys, time, torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset
parser = argparse.ArgumentParser()
parser.add_argument("--kind")
parser.add_argument("--steps", type=int, default=0)
asked = parser.parse_args()
rank = int(os.environ["RANK"])
folder = Path(__file__).resolve().parents[2]
torch.distributed.init_process_group("gloo")
do, doing = torch.zeros(1), ["usual", "slow", "end"]
def slow(kind): return rank == 1 and asked.kind == kind and int(do) == 1
class Data(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, index):
        if slow("loader"):
            time.sleep(0.06)
        return torch.ones(8)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
draw = random.Random(rank)
class SlowFile:
    def write(self, block): time.sleep(0.0003); return len(block)
    def flush(self): pass
others = []
if asked.kind == "crowded":
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
for step, batch in enumerate(DataLoader(Data(), batch_size=1)):
    if slow("crowded") and not others:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    if asked.kind == "crowded":
        until = time.thread_time() + 0.01
        while time.thread_time() < until: pass
    elif asked.kind == "healthy":
        time.sleep(0.02 * draw.lognormvariate(0, 0.5))
    else:
        time.sleep(0.02)
    if slow("sleeper"):
        time.sleep(0.06)
    model(batch).mean().backward()
    optimizer.step()
    if asked.kind == "healthy" and rank == 0:
        torch.save(model.state_dict(), SlowFile())
        if step % 25 == 24:
            time.sleep(0.5)
    if rank == 0 and (folder / "do").exists():
        do[0] = doing.index((folder / "do").read_text())
    torch.distributed.broadcast(do, 0)
    if int(do) == 2 or step + 1 == asked.steps:
        break
for one in others:
    one.kill()
print("steps:", step + 1, flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Makes jobs of one rank a host, and ends what they leave."""
    with ended() as made:

        def make(count: int, **given: object) -> Hosts:
            names = [f"127.0.0.{number + 1}" for number in range(count)]
            settings = {"distribution": "torchrun", "processes_per_host": 2 // count, "profile": "auto"}
            own = {f"trainshed_{name}": value for name, value in settings.items()}
            made.append(job := Hosts(tmp_path, names, SCRIPT, {**own, **given}))
            return job

        yield make


def tell(job: Hosts, what: str) -> None:
    """What the ranks do from now on."""
    aside = job.folder / "do.new"
    aside.write_text(what)
    aside.rename(job.folder / "do")


def named(job: Hosts) -> list[tuple[int, str]]:
    """(step, line) of each line about a slow rank, on host 0."""
    lines = [line for line in job.output(0).splitlines() if re.search(r"rank \d on \S+ (holds up|keeps up)", line)]
    return [(int((re.search(r"at step (\d+)", line) or [0, 0])[1]), line) for line in lines]


def line_about_a_slow_rank(job: Hosts) -> str:
    """The only line that the job prints about one that is slow from its first step until it is named."""
    tell(job, "slow")
    job.start()
    job.wait_for_host(0, "holds up the others")
    tell(job, "end")
    assert job.exit_codes() == [0], job.all_output()
    ((_, line),) = named(job)
    return line


def test_a_rank_that_sleeps_on_another_host_is_named_until_it_keeps_up_again(hosts) -> None:
    job = hosts(2, kind="sleeper")
    tell(job, "slow")
    job.start()
    job.wait_for_host(0, "holds up the others")
    tell(job, "usual")
    job.wait_for_host(0, "keeps up with the others again")
    tell(job, "end")
    assert job.exit_codes() == [0, 0], job.all_output()

    (begin, behind), (end, again) = named(job)
    assert "rank 1 on 127.0.0.2 holds up the others" in behind and "the difference is in its forward" in behind
    assert "it sleeps, or waits for something outside of the job" in behind
    assert "rank 1 on 127.0.0.2 keeps up" in again and begin < end
    assert begin <= 300, "some steps, whatever the machine does: blocks of half a second, ten of them"
    (record,) = (job.base(0) / "output/data/run").glob("*.json")
    (episode,) = json.loads(record.read_text())["slow_ranks"]
    assert episode == {"rank": 1, "host": "127.0.0.2", "phase": "forward", "begin": begin, "end": end}
    assert not list(job.base(0).glob("output/profiler/pace/*")), "nothing is left of it"


@pytest.mark.heavy
def test_a_rank_with_a_slow_loader_is_named_with_its_data(hosts) -> None:
    line = line_about_a_slow_rank(hosts(1, kind="loader"))
    assert "rank 1 on 127.0.0.1 " in line and "the difference is in its wait for data" in line


@pytest.mark.heavy
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU every rank is crowded")
def test_a_rank_whose_cpu_others_have_is_named_with_what_it_waits_for(hosts) -> None:
    line = line_about_a_slow_rank(hosts(1, kind="crowded"))
    assert "rank 1 on 127.0.0.1 " in line and "of a step it has no CPU: other processes have it" in line


def test_a_healthy_job_names_nobody_though_rank_0_evaluates_and_saves_and_batches_differ(hosts) -> None:
    job = hosts(1, kind="healthy", steps=300)
    job.start()
    assert job.exit_codes() == [0], job.all_output()

    assert "steps: 300" in job.output(0) and named(job) == []
