"""Jobs that are slowed on purpose: where the time of their steps goes, and whether the verdict names the cause."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from support.paths import TOOLKIT
from trainshed.observe.steps import RankSteps, read_steps

pytestmark = pytest.mark.torch

# What slows it is a hyperparameter; the sleeps are long beside anything that a busy machine adds.
SCRIPT = """\
import argparse, os, time, torch
from torch.utils.data import DataLoader, Dataset
parser = argparse.ArgumentParser()
for name in ("data", "lag", "validation"):
    parser.add_argument(f"--{name}", type=float, default=0.0)
for name, default in (("batch", 16), ("width", 64), ("save", 0), ("steps", 24), ("accumulate", 1), ("broken", 0),
                      ("shard", 0)):
    parser.add_argument(f"--{name}", type=int, default=default)
asked = parser.parse_args()
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
class Data(Dataset):
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def __getitem__(self, index):
        if asked.data:  # to sleep for 0 s gives the core away, too
            time.sleep(asked.data / asked.batch)
        return {"x": torch.ones(asked.width), "y": torch.ones(1)}
model = torch.nn.Sequential(torch.nn.Linear(asked.width, asked.width), torch.nn.ReLU(), torch.nn.Linear(asked.width, 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
    if asked.shard:
        from torch.distributed.fsdp import fully_shard
        fully_shard(model[0]), fully_shard(model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if asked.broken:
    from trainshed.observe.stepping.segments import Segments
    Segments._cut = lambda *_: 1 / 0
path = os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "checkpoint.pt")
micro = 0
for batch in DataLoader(Data(asked.batch * asked.steps * asked.accumulate), batch_size=asked.batch):
    micro += 1
    if asked.lag and rank == ranks - 1:
        time.sleep(asked.lag)
    loss = ((model(batch["x"]) - batch["y"]) ** 2).mean()
    loss.backward()
    if micro % asked.accumulate:
        continue
    optimizer.step()
    optimizer.zero_grad()
    if asked.save:
        for _ in range(asked.save):
            torch.save(model.state_dict(), path)
    if asked.validation:
        with torch.no_grad():
            for other in DataLoader(Data(asked.batch), batch_size=asked.batch):
                time.sleep(asked.validation)
print("loss is finite:", bool(loss.isfinite()))
if ranks > 1:
    torch.distributed.destroy_process_group()
"""


def run(job: Any, ranks: int = 1, **hyperparameters: object) -> Any:
    """The job, with its steps measured."""
    job.code("train.py", SCRIPT)
    several = {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": str(ranks)} if ranks > 1 else {}
    given = {"sagemaker_program": "train.py", "trainshed_profile": "auto", **several}
    job.configure(hyperparameters={**given, **{name: str(value) for name, value in hyperparameters.items()}})
    done = job.train()
    assert done.status == 0, done.output
    assert "loss is finite: True" in done.stdout
    return done


def verdict(done: Any) -> str:
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("trainshed: profile: ")]
    return str(line.removeprefix("trainshed: profile: "))


def measured(job: Any) -> list[RankSteps]:
    return read_steps(str(job.base / "output/profiler"))


@pytest.mark.spine
def test_a_slow_dataset_is_named_and_a_validation_is_not_taken_for_one(job_tree: Any) -> None:
    done = run(job_tree, data=0.08, validation=0.01, accumulate=2)
    (rank,) = measured(job_tree)
    phases = rank.phases()

    assert verdict(done).startswith("input-bound: ") and "num_workers=0" in verdict(done)
    assert rank.steps == 23, "the first step is like no other"
    began, ready, first = (rank.facts.pop(name) for name in ("Began", "Ready", "First"))
    assert began + rank.facts.pop("Imported") <= ready <= first <= rank.windows[0].time
    assert rank.facts | {"Pid": 0} == {
        **{"Rank": 0, "World": 1, "Host": "algo-1", "Ranks": 1, "Pid": 0, "Workers": 0, "Device": "cpu"},
        "Cpus": len(os.sched_getaffinity(0)),
        "Threads": rank.facts["Threads"],
    }
    assert sum(window.samples or 0 for window in rank.windows) == 23 * 2 * 16
    assert phases["data"] >= 23 * 2 * 0.08 and phases["rest"] >= 23 * 0.09
    assert sum(phases.values()) == pytest.approx(rank.seconds, rel=0.01)
    (record,) = (job_tree.base / "output/data/run").glob("*.json")
    assert json.loads(record.read_text())["steps"]["cause"] == "input"


def test_a_slow_rank_is_named_and_the_other_one_waits_for_it(job_tree: Any) -> None:
    done = run(job_tree, ranks=2, lag=0.15)
    fast, slow = measured(job_tree)

    assert verdict(done).startswith("held up by one rank: rank 1 needs ") and "its forward" in verdict(done)
    assert fast.phases()["communication"] > fast.seconds / 2 > slow.phases()["communication"] * 2


def test_what_a_sharded_rank_waits_for_the_others_parameters_is_communication(job_tree: Any) -> None:
    """FSDP2: the first parameters come when the slow rank has come to its forward."""
    done = run(job_tree, ranks=2, lag=0.15, shard=1, steps=12)
    fast, slow = measured(job_tree)

    assert verdict(done).startswith("held up by one rank: rank 1 needs ") and "its forward" in verdict(done)
    assert fast.phases()["communication"] > fast.seconds / 2 > slow.phases()["communication"] * 2
    assert fast.phases()["forward"] < slow.phases()["forward"] / 2


def test_a_measurement_that_fails_is_said_once_and_costs_the_job_nothing(job_tree: Any) -> None:
    done = run(job_tree, broken=1)

    assert done.stderr.count("the steps are not measured any more: ZeroDivisionError") == 1
    assert verdict(done).startswith("no verdict")


@pytest.mark.heavy
def test_a_tiny_batch_is_named(job_tree: Any) -> None:
    assert verdict(run(job_tree, batch=1, steps=400)).startswith("overhead-bound: a step has 1 sample and takes ")


@pytest.mark.heavy
def test_a_checkpoint_every_step_is_named(job_tree: Any) -> None:
    assert verdict(run(job_tree, save=20)).startswith("checkpoint-bound: ")


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and tc")
def test_a_slow_link_between_the_ranks_is_named(job_tree: Any) -> None:
    """Two ranks in a network of their own, whose only link takes 20 Mbit/s."""
    job_tree.code("train.py", SCRIPT)
    job_tree.configure(
        hyperparameters={
            **{"sagemaker_program": "train.py", "trainshed_profile": "auto", "width": "200"},
            **{"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "2"},
        }
    )
    link = 'ip link set lo up mtu 1500 && tc qdisc add dev lo root tbf rate 20mbit burst 256kb latency 9s && exec "$@"'
    command = [sys.executable, "-m", "trainshed.container.main"]
    environ = job_tree.environ() | {"PYTHONPATH": str(TOOLKIT)}
    done = subprocess.run(["unshare", "-n", "sh", "-c", link, "sh", *command], env=environ, capture_output=True, text=True)
    if "tc" in done.stderr and "qdisc" in done.stderr:
        pytest.skip("this kernel has no token buckets")

    assert done.returncode == 0, done.stdout + done.stderr
    assert verdict(done).startswith("communication-bound: ")
