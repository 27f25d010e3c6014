"""Scripts for Amazon's model parallel library as the SDK submits them, each host one stage: two containers, one pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.docker_cli import Containers, FinishedContainer
from support.extras import needs
from support.paths import ROOT

pytestmark = pytest.mark.docker
HOSTS = ["algo-1", "algo-2"]
SCRIPTS = ROOT / "tests/jobs/parallel"
# `distribution={"smdistributed": {"modelparallel": {...}}, "mpi": {"enabled": True, "processes_per_host": 1}}` of SDK v2.
AS_THE_SDK_SENDS_IT: dict[str, Any] = {
    "mp_parameters": {"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "optimize": "speed", "ddp": True},
    "sagemaker_mpi_enabled": True,
    "sagemaker_mpi_num_of_processes_per_host": 1,
    "sagemaker_mpi_custom_mpi_options": "",
    "sagemaker_distributed_dataparallel_enabled": False,
    "sagemaker_instance_type": "local",
}
TRAINER: dict[str, Any] = {
    "output_dir": "/opt/ml/model", "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "max_steps": 4,
    "logging_steps": 1, "learning_rate": 0.01, "lr_scheduler_type": "constant", "save_steps": 4, "report_to": "none",
    "seed": 1, "eval_strategy": "steps", "eval_steps": 4, "remove_unused_columns": False, "disable_tqdm": True,
}  # fmt: skip


def run_on_both(
    container: Containers, network: str, script: str, hyperparameters: dict[str, Any], shared: Path
) -> list[FinishedContainer]:
    """The script as one job on two containers that share a folder; both have ended well."""
    running = []
    for host in HOSTS:
        job = container.job(host).configure({"sagemaker_program": script, **AS_THE_SDK_SENDS_IT, **hyperparameters})
        resources = {"current_host": host, "hosts": HOSTS, "network_interface_name": "ethwe"}  # a name no container has
        job.write(
            {
                "input/config/resourceconfig.json": json.dumps(resources),
                f"code/{script}": (SCRIPTS / script).read_text(),
            }
        )
        running.append(
            container.start(
                job=job,
                network=network,
                hostname=host,
                env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
                options=("--shm-size=1g", "--volume", f"{shared}:/opt/ml/shared"),
            )
        )
    ended = [one.wait(timeout=400) for one in running]
    for host, done in zip(HOSTS, ended, strict=True):
        assert done.status == 0, f"{host}:\n{done.output}"
        record = json.loads(done.job.read(f"output/data/run/{host}.json"))
        assert record["cluster"]["world_size"] == 2 and record["state"] == "Completed"
    return ended


@pytest.mark.heavy
def test_transformers_trainer_trains_gpt2_over_two_containers_as_in_one_process(
    container: Containers, network: str, tmp_path: Path
) -> None:
    first, second = run_on_both(container, network, "trainer_script.py", TRAINER, tmp_path)
    result = json.loads(first.job.read("model/result0.json"))
    assert json.loads(second.job.read("model/result1.json")) == result
    assert "sagemaker" in result["trainer"].lower()

    needs("transformers")
    flags = [word for key, value in {**TRAINER, "output_dir": tmp_path}.items() for word in (f"--{key}", str(value))]
    subprocess.run([sys.executable, str(SCRIPTS / "trainer_script.py"), *flags], check=True, timeout=300)
    alone = json.loads((tmp_path / "result.json").read_text())
    assert "sagemaker" not in alone["trainer"].lower()
    assert result["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert result["eval"] == pytest.approx(alone["eval"], rel=1e-4)

    from transformers import GPT2LMHeadModel

    trained = GPT2LMHeadModel.from_pretrained(first.job.folder / "model/checkpoint-4")
    expected = GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-4")
    for have, want in zip(trained.parameters(), expected.parameters(), strict=True):
        assert (have - want).abs().max() < 1e-4


def test_a_script_in_the_style_of_amazons_mnist_example_trains_over_two_containers(
    container: Containers, network: str, tmp_path: Path
) -> None:
    ended = run_on_both(container, network, "mnist_script.py", {"output": "/opt/ml/shared"}, tmp_path)
    for done in ended:
        result = json.loads(done.output.split("RESULT ")[1].splitlines()[0])
        assert result["last"] < 0.5 * result["first"]
        assert result["resumed"] == pytest.approx(result["last_after"], rel=1e-5)
