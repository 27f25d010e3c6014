"""`docker stop` on a DDP job of two containers: both save on notice, end as configured, and go on at the same step."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.docker_cli import Containers, Running
from support.notice_jobs import TRAINING

pytestmark = [pytest.mark.docker, pytest.mark.torch]
HOSTS = ["algo-1", "algo-2"]


def start(container: Containers, network: str, **env: str) -> list[Running]:
    """Starts both hosts of the job; a second time they find their folders as the first time left them."""
    running = []
    for host in HOSTS:
        job = container.job(host).configure(
            {
                "sagemaker_program": "train.py",
                "sagemaker_torch_distributed_enabled": True,
                "trainshed_processes_per_host": 1,
                "trainshed_interrupted_exit_code": 75,
            }
        )
        resources = {"current_host": host, "hosts": HOSTS, "network_interface_name": "ethwe"}
        job.write({"input/config/resourceconfig.json": json.dumps(resources), "code/train.py": TRAINING})
        options = ("--shm-size=1g",)
        variables = {"OMP_NUM_THREADS": "1", **env}
        running.append(container.start(job=job, network=network, hostname=host, env=variables, options=options))
    return running


@pytest.mark.parametrize("stopped", [HOSTS[1:], pytest.param(HOSTS, marks=pytest.mark.heavy)])
def test_docker_stop_saves_on_both_hosts_and_the_next_run_goes_on_at_that_step(
    container: Containers, network: str, stopped: list[str]
) -> None:
    running = start(container, network)
    for rank, one in enumerate(running):
        one.wait_for(f"loss rank={rank} step=10 ")
    with ThreadPoolExecutor() as pool:
        for host, one in zip(HOSTS, running, strict=True):
            if host in stopped:
                pool.submit(one.stop)
    steps = set()
    for host, one in zip(HOSTS, running, strict=True):
        done = one.wait()
        assert done.status == 75, f"{host}:\n{done.output}"
        record = json.loads(done.job.read(f"output/data/run/{host}.json"))
        step = record["interruption"]["step"]
        assert record["state"] == "Interrupted"
        assert record["interruption"]["checkpoint"] == f"/opt/ml/checkpoints/step-{step:012d}"
        assert (done.job.folder / f"checkpoints/step-{step:012d}").is_dir()
        assert not (done.job.folder / "output/success").exists() and not (done.job.folder / "output/failure").exists()
        steps.add(step)
    (step,) = steps
    for host, one in zip(HOSTS, start(container, network, STEPS=str(step + 3)), strict=True):
        done = one.wait()
        assert done.status == 0, f"{host}:\n{done.output}"
        assert re.findall(r"start rank=\d step=(\d+)", done.output) == [str(step)]
        assert (done.job.folder / "output/success").is_file()
