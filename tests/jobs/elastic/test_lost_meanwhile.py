"""Hosts of an elastic job that are lost at bad moments: while the ranks start again, and while a checkpoint is written."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from jobs.elastic.test_leader_lost import LearningHosts
from support.hosts import LIMIT, Hosts, ended

pytestmark = [pytest.mark.torch, pytest.mark.heavy, pytest.mark.safety]
AGAIN = "127.0.0.2 leads the job now: starting the ranks again"

SAVES = """\
import os, time
import torch, torch.distributed as dist
from trainshed.checkpoint import Checkpointer
dist.init_process_group("gloo")
rank, world, host = dist.get_rank(), dist.get_world_size(), os.environ["SM_CURRENT_HOST"]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
net = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
rows = torch.arange(24.0).reshape(6, 4) / 24
checkpointer = Checkpointer.for_job(model=net, optimizer=optimizer, every_steps=5)
step = checkpointer.restore()
print("begin: world", world, "from step", step, flush=True)
fsync = os.fsync

def caught(fd):
    if step >= 10 and world == 3 and host == "CAUGHT":
        print("caught while it writes", flush=True)
        time.sleep(1000)
    fsync(fd)

os.fsync = caught
while step < 20:
    mine = rows[rank * 6 // world : (rank + 1) * 6 // world]
    optimizer.zero_grad()
    loss = (net(mine) - mine.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    step += 1
    dist.all_reduce(loss.detach())
    print("loss", step, f"{loss.item():.5f}", flush=True)
    if checkpointer.step(step):
        raise SystemExit
    if step == 5:
        checkpointer.wait()
        dist.barrier()  # it is whole
    while step == 12 and world == 3 and host != "CAUGHT":
        time.sleep(0.1)
checkpointer.close()
if rank == 0:
    torch.save(model.state_dict(), os.environ["SM_MODEL_DIR"] + "/model")
dist.destroy_process_group()
"""


class SavingHosts(Hosts):
    """Three hosts with one folder for checkpoints. caught: the host that never ends writing the second checkpoint."""

    def __init__(self, folder: Path, caught: int | None) -> None:
        names = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        script = SAVES.replace("CAUGHT", names[caught] if caught is not None else "nobody")
        settings = {"distribution": "torchrun", "engine": "torchrun", "processes_per_host": 1, "min_nodes": 2}
        settings["grace_seconds"] = 5
        super().__init__(folder, names, script, {f"trainshed_{key}": value for key, value in settings.items()})
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        for number in range(3):
            os.symlink(self.checkpoints, self.base(number) / "checkpoints")

    def begun(self, number: int) -> list[str]:
        """The starts that this host's ranks have told."""
        return [line[line.index("begin:") :] for line in self.output(number).splitlines() if "begin:" in line]


def test_when_the_new_leader_is_killed_while_its_ranks_start_the_last_host_finishes(tmp_path: Path) -> None:
    with ended() as made:
        made.append(job := LearningHosts(tmp_path, min_nodes=1, steps=40))
        job.begin()
        job.processes[0].send_signal(signal.SIGKILL)
        job.wait_for_host(2, AGAIN)
        job.processes[1].send_signal(signal.SIGKILL)  # torch takes seconds to load: no rank has begun
        assert job.processes[2].wait(LIMIT) == 0, job.all_output()
        job.wait_until_gone(0)
        job.wait_until_gone(1)
    assert "127.0.0.3 leads the job now" in job.output(2)
    assert job.lines(2, "begin:")[-1] == "begin: world 1 from step 5"
    assert (job.base(2) / "model/model").exists() and job.succeeded(2)


def test_when_a_follower_is_killed_while_the_ranks_start_the_new_leader_finishes(tmp_path: Path) -> None:
    with ended() as made:
        made.append(job := LearningHosts(tmp_path, min_nodes=1, steps=40))
        job.begin()
        job.processes[0].send_signal(signal.SIGKILL)
        job.wait_for_host(1, AGAIN)
        job.processes[2].send_signal(signal.SIGKILL)
        assert job.processes[1].wait(LIMIT) == 0, job.all_output()
        job.wait_until_gone(0)
        job.wait_until_gone(2)
    assert job.lines(1, "begin:")[-1] == "begin: world 1 from step 5"
    assert (job.base(1) / "model/model").exists() and job.succeeded(1)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_host_that_is_killed_while_it_writes_a_checkpoint_leaves_the_one_before(tmp_path: Path, lost: int) -> None:
    left = [number for number in range(3) if number != lost]
    with ended() as made:
        made.append(job := SavingHosts(tmp_path, caught=lost))
        job.start(HOME=str(tmp_path))
        job.wait_for_host(lost, "caught while it writes")
        job.processes[lost].send_signal(signal.SIGKILL)
        assert [job.processes[number].wait(LIMIT) for number in left] == [0, 0], job.all_output()
        job.wait_until_gone(lost)
    for number in left:
        assert job.begun(number)[-1] == "begin: world 2 from step 5", job.all_output()
        assert job.succeeded(number)
    assert sum((job.base(number) / "model/model").exists() for number in left) == 1
