"""Nodes of a Ray cluster that are lost while a job trains on them: another one, from the checkpoint; or a clear end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.ray.cluster import Cluster, Started, job_file

pytestmark = [pytest.mark.heavy, pytest.mark.matrix, pytest.mark.safety]
Submit = Callable[..., Started]
SCRIPT = Path(__file__).parent / "digits_ddp.py"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Digits, and what trains on them by DDP, with one rank on each of two nodes."""
    import numpy
    from sklearn.datasets import load_digits

    digits = load_digits()
    (tmp_path / "digits").mkdir()
    numpy.savez(tmp_path / "digits/digits.npz", points=digits.data.astype("float32"), labels=digits.target)
    (tmp_path / "train.py").write_text(SCRIPT.read_text())
    job_file(
        tmp_path,
        instances=2,
        retries=1,
        grace_seconds=10,
        channels={"digits": "digits"},
        distribution={"kind": "torchrun", "processes_per_host": 1},
    )
    return tmp_path


def test_a_lost_node_costs_no_more_than_the_steps_since_the_last_checkpoint(
    own_cluster: Callable[..., Cluster], submit: Submit, project: Path
) -> None:
    cluster = own_cluster(0, 1, 1, 1)  # a head without room for hosts, as usual
    whole = submit(cluster)
    assert whole.end() == 0, whole.output
    (project / "run").rename(project / "whole")
    (project / "out").unlink()
    hold = project / "hold"
    job = submit(cluster, "--env", f"HOLD={hold}")
    job.until(lambda: (project / "run/checkpoints/step-000000000010/algo-1.part0.manifest").exists())
    (lost,) = re.findall(r"\[algo-1:0\] start at step=0 node=(\d)", job.output)
    cluster.tell(f"kill {lost}")
    job.until_said("attempt 2, with the checkpoints of those before")
    hold.touch()

    assert job.end() == 0, job.output
    assert "its node" in job.output and "was lost" in job.output
    assert "start at step=10 node=" in job.output
    assert loss(job) == loss(whole)
    assert (project / "run/model/net.pt").exists()
    assert job.status["TrainingJobStatus"] == "Completed"
    assert len(job.status["Trainshed"]["Attempts"]) == 2


def test_a_lost_head_ends_the_job_in_words(own_cluster: Callable[..., Cluster], submit: Submit, project: Path) -> None:
    cluster = own_cluster(0, 1, 1)
    job = submit(cluster, "--env", f"HOLD={project}/never", "--retries", "0")
    job.until(lambda: (project / "run/checkpoints/step-000000000010/algo-1.part0.manifest").exists())
    cluster.tell("kill 0")

    assert job.end() != 0
    assert job.status["TrainingJobStatus"] == "Failed"
    assert re.search(r"the (connection to|head of) the Ray cluster at \S+ (was lost|does not answer any more)", job.output)
    assert "Traceback" not in job.output
    assert (project / "run/checkpoints/step-000000000010").exists()


def test_a_lost_node_without_another_one_is_refused_with_what_is_left(
    own_cluster: Callable[..., Cluster], submit: Submit, project: Path
) -> None:
    cluster = own_cluster(0, 1, 1)
    job = submit(cluster, "--env", f"HOLD={project}/never")
    job.until(lambda: (project / "run/checkpoints/step-000000000010/algo-1.part0.manifest").exists())
    cluster.tell("kill 2")

    assert job.end() == 69, job.output
    assert "the job asks for 2 x (1 CPU)" in job.output and "can never hold" in job.output
    assert job.status["TrainingJobStatus"] == "Failed"


def loss(job: Started) -> str:
    """As the last line of training says it."""
    (found,) = re.findall(r"metric loss=(\S+) step=20", job.output)
    return str(found)
