"""Whole jobs of scripts that import horovod.torch: what ranks exchange, how they fail, what a restart goes on from."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hosts import Hosts, ended

pytestmark = pytest.mark.torch
RANKS = {"trainshed_distribution": "horovod", "sagemaker_program": "train.py"}
# When a rank fails `train` stops the others, and what they have to say is looked at here.
BEGIN = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import horovod.torch as hvd, torch
from horovod.common.exceptions import HorovodInternalError
hvd.init()
rank = hvd.rank()
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Makes jobs on two hosts, and ends what they leave."""
    with ended() as made:

        def make(script: str, **settings: str) -> Hosts:
            made.append(job := Hosts(tmp_path, ["127.0.0.1", "127.0.0.2"], script, {**RANKS, **settings}))
            return job

        yield make


@pytest.mark.exact
@pytest.mark.matrix
def test_everything_that_ranks_do_together(job_tree: Any) -> None:
    """operations.py has the checks; each must pass on all four ranks."""
    script = Path(__file__).with_name("operations.py").read_text()
    job_tree.code("train.py", script)
    job_tree.configure(hyperparameters={**RANKS, "trainshed_processes_per_host": "4"})
    done = job_tree.train()
    told = re.findall(r"CHECK (\w+) (passed|FAILED.*)", done.stdout)

    assert [line for line in told if line[1] != "passed"] == [] and done.status == 0, done.output[-4000:]
    checks = re.findall(r"^@check\ndef (\w+)", script, re.MULTILINE)
    assert sorted(name for name, _ in told) == sorted(checks * 4)


@pytest.mark.spine
def test_a_rank_that_raises_is_the_cause_on_all_hosts_and_nobody_waits_for_it(hosts: Callable[..., Hosts]) -> None:
    script = """
assert (hvd.size(), hvd.local_size(), hvd.local_rank(), hvd.cross_size(), hvd.cross_rank()) == (2, 1, 0, 2, rank)
assert hvd.allgather(torch.tensor([rank])).tolist() == [0, 1]
if rank == 1:
    raise ValueError("bad batch")
try:
    hvd.allreduce(torch.ones(3), name="waits")
except HorovodInternalError as error:
    print("TOLD", error, flush=True)
    raise
"""
    job = hosts(BEGIN + script, trainshed_processes_per_host="1")
    job.start(HOME=str(job.folder))

    assert job.exit_codes() == [1, 1], job.all_output()
    for number in range(2):
        assert "ValueError: bad batch" in job.failure(number) and "rank 1" in job.failure(number), job.failure(number)
    assert "TOLD allreduce of 'waits': rank 1 is gone: its process has ended" in job.output(0), job.output(0)


@pytest.mark.matrix
@pytest.mark.skipif(
    "Open MPI" not in subprocess.getoutput("mpirun --version 2>&1"), reason="Open MPI's mpirun is not installed"
)
def test_the_platforms_way_is_mpi_and_a_rank_that_ends_early_is_told(job_tree: Any) -> None:
    script = """
assert "OMPI_COMM_WORLD_RANK" in os.environ and hvd.size() == 2
assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).item() == 1
if rank == 0:
    try:
        hvd.allreduce(torch.ones(1), name="one more")
    except HorovodInternalError as error:
        print("TOLD", error, flush=True)
    try:
        hvd.join()
    except HorovodInternalError as error:
        print("TOLD", error, flush=True)
"""
    job_tree.code("train.py", BEGIN + script)
    asked = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
    job_tree.configure(hyperparameters={**asked, "sagemaker_program": "train.py"})
    with tempfile.TemporaryDirectory(prefix="mpi") as short:  # sockets live in it
        done = job_tree.train(TMPDIR=short)

    assert done.status == 0, done.output
    assert "TOLD allreduce of 'one more': rank 1 has left: its script has ended" in done.stdout
    assert "TOLD join: rank 1 has left: its script has ended, or called hvd.shutdown(), and has not joined" in done.stdout


@pytest.mark.exact
@pytest.mark.matrix
def test_commits_of_an_elastic_state_survive_a_restart(job_tree: Any) -> None:
    """Rank 1 is killed in its third batch; the second start goes on from the last commit, also from what ranks have seen."""
    script = """
torch.manual_seed(rank)
model = torch.nn.Linear(2, 1)
sampler = hvd.elastic.ElasticSampler(range(12), shuffle=True, seed=3)

@hvd.elastic.run
def train(state):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    print("BEGIN", rank, state.batch, sorted(state.notes), len(sampler.processed_indices), flush=True)
    for number, index in enumerate(list(sampler)):
        sampler.record_batch(number, 1)
        with torch.no_grad():
            model.weight.add_(hvd.allreduce(torch.ones_like(model.weight) * index, name="step"))
        state.batch += 1
        state.notes.append(state.batch)
        if first and state.batch == 3:
            state.batch = 100  # never committed
            if rank == 1:
                if not os.fork():  # as a DataLoader's worker does, it outlives its rank for a while
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    time.sleep(600)
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                hvd.barrier()
            except HorovodInternalError as error:
                print("TOLD", error, flush=True)
                raise
        state.commit()
    return "done"

state = hvd.elastic.TorchState(model=model, sampler=sampler, batch=0, notes=[])
start = model.weight.detach().clone()
print("ENDED", rank, train(state), state.batch, state.notes, model.weight.tolist(), flush=True)
saved = model.weight.detach().clone()
with torch.no_grad():
    model.weight.zero_()
state.batch = -1
state.restore()
assert torch.equal(model.weight, saved) and state.batch == 6
"""
    job_tree.code("train.py", BEGIN + script)
    job_tree.configure(hyperparameters={**RANKS, "trainshed_processes_per_host": "2", "trainshed_max_restarts": "1"})
    done = job_tree.train()

    assert done.status == 0, done.output
    assert "TOLD barrier of 'barrier.noname.1': rank 1 is gone: its process has ended" in done.stdout
    begun = sorted(line.partition("BEGIN ")[2] for line in done.stdout.splitlines() if "BEGIN " in line)
    assert begun == ["0 0 [] 0", "0 2 [1, 2] 4", "1 0 [] 0", "1 2 [1, 2] 4"], done.output
    ends = [line.partition("ENDED ")[2].split(maxsplit=1)[1] for line in done.stdout.splitlines() if "ENDED " in line]
    assert len(ends) == 2 and ends[0] == ends[1] and ends[0].startswith("done 6 [1, 2, 3, 4, 5, 6]")
    assert "resuming from step 2" in done.output and "goes on from commit 2" in done.stdout
    commits = sorted(path.name for path in (job_tree.base / "checkpoints").glob("*.pt*"))
    assert commits == [f"horovod-train-commit-{number}.pt{end}" for number in (5, 6) for end in ("", ".sum")]
