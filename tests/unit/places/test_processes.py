"""What hosts that are processes of one machine are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainshed.places import gpus, processes
from trainshed.runner.files import layout
from trainshed.runner.job.job import DistributionSpec, Job


def told(monkeypatch: pytest.MonkeyPatch, folder: Path, **job: Any) -> str:
    """The command of the second of two hosts on a machine with eight CPUs and no GPU."""
    monkeypatch.setattr(processes, "cpus", lambda: 8)
    monkeypatch.setattr(gpus, "present", lambda environ: ())
    made = Job(name="n", program="train.py", output=str(folder / "run"), instances=2, **job)
    _, (_, command) = processes.Processes(made, {}, print).describe(layout.plan(made, in_containers=False, now=0))
    return command


@pytest.mark.parametrize(
    ("job", "shared"),
    [
        ({"distribution": DistributionSpec(kind="torchrun")}, True),
        ({"hyperparameters": {"sagemaker_torch_distributed_enabled": True}}, True),
        ({"distribution": DistributionSpec(kind="torchrun", processes_per_host=2)}, False),
        ({"distribution": DistributionSpec(kind="parameter_server")}, False),
        ({"distribution": DistributionSpec(kind="tensorflow")}, False),
        ({"hyperparameters": {"sagemaker_parameter_server_enabled": "true"}}, False),
        ({"hyperparameters": {"trainshed_distribution": "jax"}}, False),
    ],
)
def test_hosts_share_the_cpus_where_each_has_a_rank(
    job: dict[str, Any], shared: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where a process uses all of its host there is one, however many CPUs the machine has."""
    assert ("TRAINSHED_PROCESSES_PER_HOST=4" in told(monkeypatch, tmp_path, **job)) == shared
