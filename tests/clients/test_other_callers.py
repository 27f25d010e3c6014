"""Callers that write less than the SDKs do: scripts of build-your-own-container examples, test suites of Amazon's images."""

from __future__ import annotations

import pytest

from support.docker_cli import Containers

pytestmark = pytest.mark.docker

LOOK = """\
import json, os, sys
keys = ("SM_CURRENT_HOST", "SM_HOSTS", "SM_CHANNELS", "SM_NUM_GPUS", "SM_NETWORK_INTERFACE_NAME", "SM_CHECKPOINT_DIR")
print("seen", json.dumps({key: os.environ[key] for key in keys}))
open(os.environ["SM_MODEL_DIR"] + "/model", "w").close()
"""


@pytest.mark.spine
def test_an_example_that_writes_empty_configs_starts(container: Containers) -> None:
    """`docker run -v $(pwd)/test_dir:/opt/ml --rm IMAGE train` with resourceConfig.json empty, and its name misspelt."""
    job = container.job().write(
        {
            "code/train.py": LOOK,
            "input/config/hyperparameters.json": "{}",
            "input/config/resourceConfig.json": "",
            "input/data/training/a.csv": "1\n",
        }
    )
    done = container("train", job=job)
    assert done.status == 0, done.output
    assert '"SM_CHANNELS": "[\\"training\\"]"' in done.stdout
    assert (job.folder / "model/model").exists() and (job.folder / "output/success").exists()


def test_a_short_resource_config_and_bare_channels_are_enough(container: Containers) -> None:
    job = container.job().write(
        {
            "code/train.py": LOOK,
            "input/config/hyperparameters.json": '{"sagemaker_program": "train.py", "text": "bare words", "n": 3}',
            "input/config/resourceconfig.json": '{"current_host": "algo-1", "hosts": ["algo-1"]}',
            "input/config/inputdataconfig.json": '{"train": {}}',
            "input/config/checkpointconfig.json": '{"LocalPath": "/opt/ml/checkpoints"}',
            "input/data/train/a.csv": "1\n",
        }
    )
    done = container(job=job, hostname="something-else")
    assert done.status == 0, done.output
    assert '"SM_CURRENT_HOST": "algo-1"' in done.stdout and '"SM_NETWORK_INTERFACE_NAME": "eth0"' in done.stdout


def test_an_interface_that_does_not_exist_is_replaced_on_two_hosts(container: Containers, network: str) -> None:
    script = "import os\nprint('by', os.environ['NCCL_SOCKET_IFNAME'], os.environ['GLOO_SOCKET_IFNAME'])\n"
    config = '{"current_host": "%s", "hosts": ["algo-1", "algo-2"], "network_interface_name": "ethwe"}'
    running = []
    for host in ("algo-1", "algo-2"):
        job = container.job(host).write({"code/train.py": script, "input/config/resourceconfig.json": config % host})
        # The names are the network's; the containers' own are others, as in the SDKs' local modes.
        running.append(container.start(job=job, network=network, options=("--network-alias", host)))
    for one in running:
        done = one.wait()
        assert done.status == 0, done.output
        assert "by eth0 eth0" in done.stdout
