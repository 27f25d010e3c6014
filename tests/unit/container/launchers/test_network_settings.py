"""EFA by instance type and by what the kernel lists, and the user's word over both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainshed.container import planning
from trainshed.container.cluster import sagemaker
from trainshed.container.launchers.network_settings import EFA, REASONS, network_settings
from trainshed.container.program.locate import Program
from trainshed.contract.cluster import Cluster

TWO = Cluster(hosts=("algo-1", "algo-2"), current_host="algo-1")
PROVIDER = {"FI_PROVIDER": "efa"}
RDMA = {**PROVIDER, "FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}


def driver(folder: Path, name: str, module: str) -> None:
    """A device as the kernel shows it."""
    (folder / "drivers" / module).mkdir(parents=True, exist_ok=True)
    (folder / "devices" / name / "device").mkdir(parents=True)
    (folder / "devices" / name / "device/driver").symlink_to(folder / "drivers" / module)


@pytest.mark.parametrize(
    ("instance_type", "variables"),
    [
        *[
            (f"ml.{name}", RDMA)
            for name in ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge")
        ],
        *[(f"ml.{name}.48xlarge", RDMA) for name in ("p6-b200", "p6-b300", "trn2")],
        *[(name, RDMA) for name in ("ml.p6e-gb200.36xlarge", "ml.trn1.32xlarge", "trn1n.32xlarge", "p4d.24xlarge")],
        *[
            (f"ml.{name}", PROVIDER)
            for name in ("g4dn.8xlarge", "g4dn.12xlarge", "g4dn.metal", "g5.48xlarge", "g6e.24xlarge", "trn2u.48xlarge")
        ],
        *[
            (name, {})
            for name in (
                "ml.g4dn.xlarge",
                "ml.g5.2xlarge",
                "ml.trn2.3xlarge",
                "ml.trn1.2xlarge",
                "ml.m5.large",
                "local_gpu",
                "local",
                "",
            )
        ],
    ],
)
def test_the_instance_type_tells(instance_type: str, variables: dict[str, str], tmp_path: Path) -> None:
    found = network_settings(TWO, instance_type, str(tmp_path / "none"))

    assert found.variables == variables
    assert bool(found.evidence) is bool(variables)


def test_a_device_tells_where_the_type_does_not_and_then_rdma_is_left_to_libfabric(tmp_path: Path) -> None:
    driver(tmp_path, "rdmap0s6", "efa")

    found = network_settings(TWO, "", str(tmp_path / "devices"))
    assert found.variables == PROVIDER and found.evidence == "this host has rdmap0s6"
    both = network_settings(TWO, "ml.p5.48xlarge", str(tmp_path / "devices"))
    assert both.variables == RDMA and "rdmap0s6" in both.evidence and "ml.p5.48xlarge" in both.evidence


def test_infiniband_is_no_efa(tmp_path: Path) -> None:
    driver(tmp_path, "mlx5_0", "mlx5_core")

    assert network_settings(TWO, "", str(tmp_path / "devices")).variables == {}


def test_a_job_on_one_host_needs_none_of_it(tmp_path: Path) -> None:
    driver(tmp_path, "rdmap0s6", "efa")
    alone = Cluster(hosts=("algo-1",), current_host="algo-1")

    assert network_settings(alone, "ml.p5.48xlarge", str(tmp_path / "devices")).variables == {}


def test_what_others_force_is_left_to_nccl() -> None:
    for family, (sizes, _) in EFA.items():
        for size in sizes:
            assert set(network_settings(TWO, f"{family}.{size}", "/none").variables) <= set(RDMA)


@pytest.mark.parametrize("own", [{}, {"FI_PROVIDER": "tcp", "FI_EFA_USE_DEVICE_RDMA": "0"}])
def test_every_rank_gets_them_and_the_users_own_value_wins(own: dict[str, str], job_tree: Any) -> None:
    job_tree.configure(
        hyperparameters={"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "2"},
        resources=job_tree.hosts(2, current_instance_type="ml.p4d.24xlarge"),
    )
    job = job_tree.read()
    program = Program(name="train.py", kind="python", command=("python", "train.py"), folder="/code")
    cluster = sagemaker.cluster(job, {}).replace(processes_per_host=2)
    plan = planning.plan(job, cluster, program, own, "/tmp/x")

    for spec in plan.processes:
        assert {name: spec.env[name] for name in RDMA} == {**RDMA, **own}
        assert "NCCL_PROTO" not in spec.env and "NCCL_IB_DISABLE" not in spec.env


def test_the_dry_run_shows_them_and_says_why(job_tree: Any) -> None:
    job_tree.code("train.py", "")
    job_tree.configure(
        hyperparameters={"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "1"},
        resources=job_tree.hosts(2, current_instance_type="ml.p5en.48xlarge"),
    )
    done = job_tree.train("--dry-run")

    assert done.status == 0, done.output
    assert "FI_EFA_USE_DEVICE_RDMA=1" in done.stdout and "network    ml.p5en.48xlarge has EFA with RDMA" in done.stdout
    for name, value in RDMA.items():
        assert f"network    {name}={value}: {REASONS[name]}\n" in done.stdout


def test_the_dry_run_says_which_values_are_the_users_own(job_tree: Any) -> None:
    job_tree.code("train.py", "")
    job_tree.configure(
        hyperparameters={"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "1"},
        resources=job_tree.hosts(2, current_instance_type="ml.p5en.48xlarge"),
    )
    done = job_tree.train("--dry-run", FI_PROVIDER="tcp")

    assert "network    FI_PROVIDER=tcp is the job's own value, and stays; without it efa: " in done.stdout
    assert f"network    RDMAV_FORK_SAFE=1: {REASONS['RDMAV_FORK_SAFE']}\n" in done.stdout


def test_every_type_of_the_table_is_one_of_ec2s() -> None:
    loaders = pytest.importorskip("botocore.loaders", reason="botocore is an extra package")
    types = set(loaders.Loader().load_service_model("ec2", "service-2")["shapes"]["InstanceType"]["enum"])

    assert {f"{family}.{size}" for family, (sizes, _) in EFA.items() for size in sizes} <= types
