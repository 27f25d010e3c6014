"""Scripts written for Amazon's data parallel library, unmodified: both its interfaces train as torch's own does."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch

TRAINING = """
import os, torch
{imports}
{start}
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(rank)
for step in range(3):
    batch = torch.randn(4, 8, generator=generator)
    if step == 1:
        with model.no_sync():
            model(batch).pow(2).mean().backward()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
{more}
dist.barrier()
said = [f"{{parameter.double().sum().item():.12f}}" for parameter in model.module.parameters()]
os.write(1, f"END {{rank}} {{world}} {{' '.join(said)}}\\n".encode())
"""
TORCH = {
    "imports": "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP",
    "start": "dist.init_process_group('gloo')",
    "more": "",
}
VERSION_1 = {
    "imports": "import smdistributed.dataparallel.torch.distributed as dist\n"
    "from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP",
    "start": "dist.init_process_group()\nassert dist.is_initialized()\n"
    "assert dist.get_local_rank() == int(os.environ['LOCAL_RANK'])",
    "more": """
mean = torch.tensor([1.0, 2.0]) * (rank + 1)
dist.all_reduce(mean, op=dist.ReduceOp.AVERAGE)
work = dist.all_reduce(whole := torch.tensor([3, 4]) * (rank + 1), op=dist.ReduceOp.AVERAGE, async_op=True)
work.wait(), work.wait()
top = torch.tensor([rank])
dist.all_reduce(top, dist.ReduceOp.MAX, group=dist.group.WORLD)
first = torch.tensor([rank + 5])
dist.broadcast(first)
every = [torch.zeros(1) for _ in range(world)]
dist.all_gather(every, torch.tensor([float(rank)]))
mine = torch.zeros(world)
dist.all_to_all_single(mine, torch.arange(world, dtype=torch.float32) + 10 * rank)
assert mean.tolist() == [1.5, 3.0] and whole.tolist() == [4, 6] and top.item() == 1 and first.item() == 5
assert [one.item() for one in every] == [0.0, 1.0] and mine.tolist() == [rank, rank + 10.0]
""",
}
VERSION_2 = {
    "imports": TORCH["imports"] + "\nimport smdistributed.dataparallel.torch.torch_smddp",
    "start": "dist.init_process_group(backend='smddp')\nassert dist.get_backend() == 'smddp'",
    "more": """
alone = dist.new_group([0, 1])
sums = torch.ones(2)
dist.all_reduce(sums, group=alone)
things = [None, None]
dist.all_gather_object(things, {"rank": rank})
assert sums.tolist() == [2.0, 2.0] and [one["rank"] for one in things] == [0, 1]
from torch.distributed.fsdp import fully_shard
sharded = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
fully_shard(sharded)
sharded(torch.ones(2, 8)).sum().backward()
""",
}
ASKED = {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_program": "train.py"}


def ends(job_tree: Any, parts: dict[str, str], **hyperparameters: str) -> list[str]:
    """What the two ranks have in the end, by rank."""
    job_tree.code("train.py", TRAINING.format(**parts))
    job_tree.configure(hyperparameters={**ASKED, "trainshed_processes_per_host": "2", **hyperparameters})
    done = job_tree.train()
    assert done.status == 0, done.output
    return sorted(line.partition("END ")[2] for line in done.stdout.splitlines() if "END " in line)


@pytest.mark.exact
@pytest.mark.parametrize(
    "version", [pytest.param(VERSION_1, marks=pytest.mark.spine), VERSION_2], ids=["version 1", "version 2"]
)
def test_a_script_for_amazons_library_trains_as_with_torch_alone(job_tree: Any, version: dict[str, str]) -> None:
    theirs, torch_alone = ends(job_tree, version), ends(job_tree, TORCH)

    assert len(theirs) == 2 and theirs == torch_alone


def test_the_names_are_there_only_for_jobs_that_ask_for_the_library(job_tree: Any) -> None:
    job_tree.code("train.py", "import smdistributed.dataparallel.torch.torch_smddp")
    job_tree.configure(hyperparameters={"trainshed_distribution": "torchrun", "sagemaker_program": "train.py"})

    assert "No module named 'smdistributed'" in job_tree.train().output


def test_a_job_may_ask_for_another_exchange_of_gradients(job_tree: Any) -> None:
    apart = {**TORCH, "start": f"os.environ['GROUP_RANK'] = os.environ['RANK']\n{TORCH['start']}"}  # as if on two hosts
    job_tree.code("train.py", TRAINING.replace("range(3)", "range(20)").format(**apart))
    said = []
    for reduce in ("off", "exact"):
        asked = {"sagemaker_program": "train.py", "trainshed_distribution": "torchrun", "trainshed_reduce": reduce}
        job_tree.configure(hyperparameters={**asked, "trainshed_processes_per_host": "2"})
        done = job_tree.train()
        assert done.status == 0, done.output
        said.append(done)
    ddp, ours = (sorted(line.partition("END ")[2] for line in done.stdout.splitlines() if "END " in line) for done in said)

    assert len(ddp) == 2 and ddp == ours  # the sum of two numbers has one order
    assert "reduce=" not in said[0].output
    assert "trainshed: reduce=exact: 2 hosts of 1 rank, " in said[1].output and "steps took" in said[1].output
