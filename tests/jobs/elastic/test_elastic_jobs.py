"""Jobs of torch's elastic agent on two hosts, each a `train` process on a loopback address: restarts, lost hosts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hosts import LIMIT, Hosts, ended

pytestmark = pytest.mark.torch
BEGIN = """\
import os, time
attempt, rank, world = (int(os.environ[n]) for n in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
print("begin", attempt, "world", world, flush=True)
"""


class ElasticHosts(Hosts):
    """Two hosts of one elastic job, a rank each, started."""

    def __init__(self, folder: Path, script: str, **settings: object) -> None:
        given: dict[str, object] = {"distribution": "torchrun", "engine": "torchrun", "processes_per_host": 1, **settings}
        names = ["127.0.0.1", "127.0.0.2"]
        super().__init__(folder, names, script, {f"trainshed_{name}": value for name, value in given.items()})
        self.start(HOME=str(folder))

    def end(self, number: int) -> int:
        """A host's exit status."""
        return self.processes[number].wait(LIMIT)

    def restarts(self, number: int) -> list[dict[str, Any]]:
        """What a host's run record says of restarts."""
        (record,) = (self.base(number) / "output/data/run").glob("*.json")
        return json.loads(record.read_text()).get("restarts", [])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ElasticHosts]]:
    """Starts jobs, and ends what they leave."""
    with ended() as made:

        def start(script: str, **settings: object) -> ElasticHosts:
            made.append(job := ElasticHosts(tmp_path, script, **settings))
            return job

        yield start


def test_a_rank_that_fails_is_started_again_and_the_reason_is_recorded(start: Callable[..., ElasticHosts]) -> None:
    # The other rank waits for it, as in a collective: an agent whose ranks have succeeded takes no part in a restart.
    script = "if rank == 1 and attempt == 0:\n    raise ValueError('bad luck')\n"
    script += "while world == 2 and not os.path.exists('../../again'):\n    time.sleep(0.05)\n    if rank == 1:\n"
    job = start(BEGIN + script + "        open('../../again', 'w').close()\nprint('done')\n", max_restarts=2)

    assert [job.end(0), job.end(1)] == [0, 0], job.all_output()
    (restart,) = [one for number in range(2) for one in job.restarts(number) if "bad luck" in one["reason"]]
    assert restart["reason"].endswith("exited with 1: ValueError: bad luck") and restart["hosts"] == 2
    assert "trainshed: restart 1 with 2 host(s) and 2 ranks, from the beginning: rank 1 on " in job.all_output()


def test_a_job_goes_on_without_a_host_that_is_lost_while_enough_are_left(start: Callable[..., ElasticHosts]) -> None:
    # The ranks wait for nothing of each other, so only the hosts' own roster can tell.
    job = start(BEGIN + "while world > 1:\n    time.sleep(0.05)\nprint('done')\n", min_nodes=1)
    job.wait_for("begin 0 world 2")
    job.processes[1].send_signal(signal.SIGKILL)

    assert job.end(0) == 0, job.all_output()
    assert "world 1\n" in job.output(0) and "127.0.0.2 vanished" in job.output(0)
    (restart,) = job.restarts(0)
    assert (restart["reason"], restart["hosts"], restart["ranks"]) == ("127.0.0.2 vanished", 1, 1)
    assert not job.failure(0)
    job.wait_until_gone(1)


@pytest.mark.spine
def test_of_two_hosts_the_second_goes_on_without_the_first_whose_machine_says_that_it_has_ended(
    start: Callable[..., ElasticHosts],
) -> None:
    job = start(BEGIN + "while world > 1:\n    time.sleep(0.05)\nprint('done')\n", min_nodes=1)
    job.wait_for("begin 0 world 2")
    job.processes[0].send_signal(signal.SIGKILL)

    assert job.end(1) == 0, job.all_output()
    assert "127.0.0.2 leads the job now" in job.output(1) and not job.failure(1)
    job.wait_until_gone(0)


def test_a_job_that_fails_without_progress_ends_before_its_restarts_are_used_up(start: Callable[..., ElasticHosts]) -> None:
    job = start(BEGIN + "if rank == 1:\n    raise ValueError('bad label 17')\ntime.sleep(600)\n", max_restarts=50)

    assert [job.end(0), job.end(1)] == [1, 1], job.all_output()
    assert "not restarted: 3 failures in a row without a newer checkpoint" in job.all_output()
    for number in range(2):
        first = job.failure(number).splitlines()[0]
        assert "rank 1 on 127.0.0." in first and "ValueError: bad label 17" in first, job.failure(number)
    assert sum(len(job.restarts(number)) for number in range(2)) >= 2


# Hosts that train by themselves between exchanges, with checkpoints in a folder of all.
LOCAL_STEPS = """\
import os, torch, torch.distributed as dist
from trainshed.checkpoint import Checkpointer
from trainshed.parallel import data
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
local = data.LocalSteps(model, optimizer, every=5, outer_rate=1, outer_momentum=0, bits=8)
checkpoints = Checkpointer("../../checkpoints", model=local.outer, extra={"local": local}, every_steps=1000)
first = checkpoints.restore()
print("from step", local.steps, "world", world, flush=True)
for step in range(local.steps, 60):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(2 * step + rank))
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if world == 2 and step == 12:  # two exchanges, and two steps of each host's own
        checkpoints.save(step + 1)
        checkpoints.wait()
        print("saved", flush=True)
    while world == 2 and step == 12 + 4 and rank == 1 and not os.path.exists("../../never"):
        import time
        time.sleep(0.05)
local.finish()
x = torch.eye(4)
print("weights", [round(one, 1) for one in local.outer.weight.flatten().tolist()], "exchanges", local.exchanges, flush=True)
"""


@pytest.mark.exact
@pytest.mark.heavy
def test_a_host_that_is_lost_between_exchanges_leaves_the_model_agreed_on_last(start: Callable[..., ElasticHosts]) -> None:
    job = start(LOCAL_STEPS, min_nodes=1, max_restarts=3)
    job.wait_for("saved")
    job.processes[1].send_signal(signal.SIGKILL)

    assert job.end(0) == 0, job.all_output()
    output = job.output(0)
    assert "from step 0 world 2" in output and "from step 10 world 1" in output, output
    assert "local steps: the hosts are others: going on from step 10, the last one they agreed on" in output
    assert "weights [1.0, 1.0, 1.0, 1.0] exchanges 12" in output
    job.wait_until_gone(1)
