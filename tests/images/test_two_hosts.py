"""The ready programs as one DDP job on two containers, as `docker run IMAGE train` starts them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.docker_cli import Containers

pytestmark = pytest.mark.docker
HOSTS = ["algo-1", "algo-2"]


@pytest.mark.parametrize(
    ("program", "hyperparameters", "model"),
    [
        ("image_classification.py", {"demo_data": "digits", "epochs": 1}, "config.json"),
        pytest.param(
            "language_model.py",
            {"demo_data": "topics", "max_steps": 2, "n_layer": 1, "n_embd": 32, "block_size": 32},
            "config.json",
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_a_ready_program_trains_on_two_containers(
    container: Containers, network: str, program: str, hyperparameters: dict[str, Any], model: str
) -> None:
    running = []
    for host in HOSTS:
        job = container.job(host).configure(
            {
                "sagemaker_program": f"/opt/trainshed/entrypoints/{program}",
                "sagemaker_torch_distributed_enabled": True,
                "trainshed_processes_per_host": 1,
                **hyperparameters,
            }
        )
        resources = {"current_host": host, "hosts": HOSTS, "network_interface_name": "ethwe"}  # a name no container has
        job.write({"input/config/resourceconfig.json": json.dumps(resources)})
        running.append(
            container.start(
                job=job, network=network, hostname=host, env={"OMP_NUM_THREADS": "1"}, options=("--shm-size=1g",)
            )
        )
    for host, one in zip(HOSTS, running, strict=True):
        done = one.wait(timeout=400)
        assert done.status == 0, f"{host}:\n{done.output}"
        assert (done.job.folder / "output/success").is_file()
        record = json.loads(done.job.read(f"output/data/run/{host}.json"))
        assert record["cluster"]["world_size"] == 2 and record["state"] == "Completed"
    assert (running[0].job.folder / "model" / model).is_file()


@pytest.mark.spine
def test_tables_are_learnt_on_two_containers_by_the_name_of_a_program(container: Containers, network: str) -> None:
    rows = "".join(f"{(x * y) % 7},{x},{y}\n" for x in range(12) for y in range(12))
    running = []
    for host in HOSTS:
        job = container.job(host).configure({"sagemaker_program": "tabular", "num_round": 4, "max_depth": 3})
        job.write({"input/data/train/rows.csv": rows})
        job.write({"input/config/inputdataconfig.json": json.dumps({"train": {"TrainingInputMode": "File"}})})
        job.write({"input/config/resourceconfig.json": json.dumps({"current_host": host, "hosts": HOSTS})})
        running.append(container.start(job=job, network=network, hostname=host, env={"OMP_NUM_THREADS": "1"}))
    first, second = (one.wait(timeout=400) for one in running)

    assert (first.status, second.status) == (0, 0), first.output + second.output
    assert "training on 144 rows of 2 features; target: column 1; 2 ranks" in first.output
    assert json.loads(first.job.read("model/.about.json"))["trained"]["rounds"] == 4
