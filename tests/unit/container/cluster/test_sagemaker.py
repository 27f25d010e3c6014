"""The cluster as the platform's files tell it, seen from each host."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.free_ports import free_ports
from trainshed.container import cluster as clusters
from trainshed.container.cluster import resolve
from trainshed.contract.cluster import Cluster, Hardware

DDP = {"sagemaker_torch_distributed_enabled": "true", "trainshed_processes_per_host": "2"}
TWELVE = tuple(f"algo-{number}" for number in range(1, 13))


def seen_by(tree: Any, current: str, resources: dict[str, Any], hyperparameters: dict[str, Any], **environ: str) -> Cluster:
    tree.configure(resources={**resources, "current_host": current}, hyperparameters=hyperparameters)
    return resolve(tree.read(**environ), environ)


def groups_of(**groups: list[str]) -> list[dict[str, Any]]:
    return [{"instance_group_name": name, "instance_type": "t", "hosts": hosts} for name, hosts in groups.items()]


def test_twelve_hosts_in_any_order_have_one_order_and_ranks_of_their_own(job_tree: Any) -> None:
    ranks = {}
    for number, host in enumerate(TWELVE):
        shuffled = random.Random(number).sample(TWELVE, 12)
        seen = seen_by(
            job_tree, host, {"hosts": shuffled, "instance_groups": groups_of(homogeneousCluster=shuffled[::-1])}, DDP
        )
        assert seen.hosts == TWELVE and seen.master == seen.address == "algo-1" and seen.port == 7777
        assert seen.world_size == 24 and seen.participates and seen.scheduler == "sagemaker"
        ranks[host] = seen.rank

    assert ranks == {host: number for number, host in enumerate(TWELVE)}


def test_the_distribution_is_the_group_that_the_job_names_in_one_order_on_every_host(job_tree: Any) -> None:
    resources = {
        "hosts": ["algo-1", "algo-2", "algo-3", "algo-10"],
        "instance_groups": groups_of(cpus=["algo-1"], gpus=["algo-10", "algo-3", "algo-2"]),
    }
    asked = {**DDP, "sagemaker_distribution_instance_groups": '["gpus"]'}
    for rank, host in enumerate(("algo-2", "algo-3", "algo-10")):
        seen = seen_by(job_tree, host, {**resources, "current_group_name": "gpus"}, asked)
        assert (seen.hosts, seen.rank, seen.address) == (("algo-2", "algo-3", "algo-10"), rank, "algo-2")

    outside = seen_by(job_tree, "algo-1", {**resources, "current_group_name": "cpus"}, asked)
    assert not outside.participates and outside.hosts == ("algo-1",) and outside.rank == 0
    assert outside.processes_per_host == 1 and outside.address == "127.0.0.1"


def test_a_distribution_over_several_groups_has_all_their_hosts_once(job_tree: Any) -> None:
    resources = {
        "hosts": ["a-1", "a-2", "a-3"],
        "instance_groups": groups_of(one=["a-3", "a-1"], two=["a-2", "a-1"]),
        "current_group_name": "one",
    }
    asked = {**DDP, "sagemaker_distribution_instance_groups": '["two", "one"]'}

    assert seen_by(job_tree, "a-3", resources, asked).hosts == ("a-1", "a-2", "a-3")


def test_without_a_distribution_all_hosts_are_in_the_job(job_tree: Any) -> None:
    resources = {"hosts": ["b", "a"], "instance_groups": groups_of(one=["a"], two=["b"]), "current_group_name": "two"}
    seen = seen_by(job_tree, "b", resources, {})

    assert seen.hosts == ("a", "b") and seen.rank == 1 and seen.processes_per_host == 1


def test_a_single_host_needs_neither_its_name_nor_an_interface(job_tree: Any) -> None:
    seen = seen_by(job_tree, "algo-1", {"hosts": ["algo-1"], "network_interface_name": "lo"}, DDP)

    assert (seen.address, seen.interface, seen.rank, seen.world_size) == ("127.0.0.1", "", 0, 2)


def test_several_hosts_use_the_platforms_interface(job_tree: Any) -> None:
    assert seen_by(job_tree, "a", {"hosts": ["a", "b"], "network_interface_name": "lo"}, DDP).interface == "lo"


def test_a_job_that_lists_no_hosts_is_a_single_one(job_tree: Any) -> None:
    seen = resolve(job_tree.configure(hyperparameters=DDP).read(), {})

    assert (seen.scheduler, seen.hosts, seen.current_host) == ("single", ("algo-1",), "algo-1")
    assert seen.evidence == "nothing names other hosts"


def test_the_users_address_and_port_win(job_tree: Any) -> None:
    seen = seen_by(job_tree, "b", {"hosts": ["a", "b"]}, DDP, MASTER_ADDR="10.0.0.7", MASTER_PORT="29500")

    assert (seen.address, seen.port) == ("10.0.0.7", 29500)


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "x", "²", "1e3", "1" * 5000])
def test_what_is_no_port_is_not_used(port: str, job_tree: Any) -> None:
    assert seen_by(job_tree, "b", {"hosts": ["a", "b"]}, DDP, MASTER_PORT=port).port == 7777


def test_the_job_may_move_the_port(job_tree: Any) -> None:
    assert seen_by(job_tree, "b", {"hosts": ["a", "b"]}, {**DDP, "trainshed_master_port": "29600"}).port == 29600


DEVICES = [
    (Hardware(cpus=8, gpus=4, neurons=2), 4, 4),
    (Hardware(cpus=8, neurons=2), 2, 2),
    (Hardware(cpus=8), 1, 8),
    (Hardware(), 1, 1),
]


@pytest.mark.parametrize(("hardware", "by_flag", "by_setting"), DEVICES)
@pytest.mark.parametrize("flag", ["sagemaker_torch_distributed_enabled", "sagemaker_mpi_enabled"])
def test_there_is_a_rank_for_each_gpu_else_neuron_core_and_on_cpus_one_if_the_platforms_flag_asks(
    flag: str, hardware: Hardware, by_flag: int, by_setting: int, job_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "probe", lambda *_: hardware)
    hosts = {"hosts": ["a", "b"]}

    seen = seen_by(job_tree, "a", hosts, {flag: "true"})
    assert (seen.processes_per_host, seen.world_size, seen.hardware) == (by_flag, 2 * by_flag, hardware)
    assert seen_by(job_tree, "a", hosts, {"trainshed_distribution": "torchrun"}).processes_per_host == by_setting
    assert seen_by(job_tree, "a", hosts, {}).processes_per_host == 1
    assert seen_by(job_tree, "a", hosts, DDP).processes_per_host == 2


@pytest.mark.parametrize(
    ("instance", "environ", "cores"),
    [("ml.trn2.48xlarge", {}, 64), ("ml.trn2.48xlarge", {"NEURON_RT_NUM_CORES": "8"}, 8), ("ml.m5.large", {}, 0)],
)
def test_a_machine_whose_neuron_cores_are_known_by_its_name(
    instance: str, environ: dict[str, str], cores: int, job_tree: Any
) -> None:
    resources = {"hosts": ["a"], "current_host": "a", "current_instance_type": instance}
    flag = {"sagemaker_torch_distributed_enabled": "true"}
    job_tree.configure(hyperparameters=flag, resources=resources)

    seen = clusters.resolve(job_tree.read(), environ)

    assert (seen.hardware.neurons, seen.processes_per_host) == (cores, cores or 1)


def test_a_pipeline_that_the_platforms_flag_asks_for_has_a_rank_for_each_cpu(
    job_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "probe", lambda *_: Hardware(cpus=4))
    flags = {"sagemaker_mpi_enabled": "true", "mp_parameters": '{"partitions": 2}'}

    assert seen_by(job_tree, "a", {"hosts": ["a"]}, flags).processes_per_host == 4


def test_hosts_whose_names_never_resolve_are_named_within_the_bound_that_the_job_sets(job_tree: Any) -> None:
    hosts = {"hosts": ["algo-1", "no-such-host.invalid", "nor-this-one.invalid"], "current_host": "algo-1"}
    job_tree.code("train.py", "print('ran')")
    ports = {"trainshed_master_port": str(free_ports(2))}  # the usual one may be another test's
    job_tree.configure(resources=hosts, hyperparameters={**DDP, **ports, "trainshed_host_timeout_seconds": "1"})

    done = job_tree.train()

    assert done.status == 69 and "ran" not in done.stdout
    assert job_tree.failure.startswith("ClusterError: ")
    assert "no-such-host.invalid" in job_tree.failure and "nor-this-one.invalid" in job_tree.failure
    assert job_tree.success is None
