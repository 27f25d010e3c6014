"""What hosts ask of a Ray cluster, and whether it has that."""

from __future__ import annotations

import pytest

from trainshed.places.ray.demand import RayNode, asked, bundles, fits, had, strategy
from trainshed.places.ray.wishes import RayOptions
from trainshed.runner.job.job import Job, Resources


def node(cpus: float = 0, gpus: float = 0, **more: float) -> RayNode:
    """A node that has so much."""
    counted = {"CPU": cpus, "GPU": gpus, "memory": 8e9, "node:10.0.0.1": 1.0, **more}
    return RayNode("10.0.0.1", {name: count for name, count in counted.items() if count})


def job(hosts: int = 1, **resources: float) -> Job:
    """A job of so many hosts."""
    return Job("job", instances=hosts, resources=Resources(**resources))  # type: ignore[arg-type]


WHOLE = [
    ("a whole node", job(), [node(8, 2)], {"CPU": 8, "GPU": 2}),
    ("what the weakest of the nodes that are needed has", job(2), [node(8, 2), node(4, 1), node(64)], {"CPU": 4, "GPU": 1}),
    ("a part of a node that hosts share", job(2), [node(8, 2)], {"CPU": 4, "GPU": 1}),
    ("a host's part of a node with GPUs", job(gpus=1), [node(8, 4)], {"CPU": 2, "GPU": 1}),
    ("no GPUs", job(gpus=0, cpus=3), [node(8, 4)], {"CPU": 3}),
    ("as asked, with memory", job(cpus=1.5, memory=1 << 30), [node(8)], {"CPU": 1.5, "memory": float(1 << 30)}),
    ("one CPU of a cluster without any", job(), [node()], {"CPU": 1}),
]


@pytest.mark.parametrize("what, job, nodes, bundle", WHOLE, ids=[case[0] for case in WHOLE])
def test_a_host_takes(what: str, job: Job, nodes: list[RayNode], bundle: dict[str, float]) -> None:
    assert bundles(job, nodes, RayOptions()) == [bundle] * job.instances


def test_hosts_get_nodes_of_their_own_where_there_are_enough() -> None:
    nodes = [node(4), node(4)]
    assert strategy(bundles(job(2), nodes, RayOptions()), nodes, RayOptions()) == "STRICT_SPREAD"
    assert strategy(bundles(job(3), nodes, RayOptions()), nodes, RayOptions()) == "SPREAD"
    assert strategy(bundles(job(3), nodes, RayOptions()), nodes, RayOptions(autoscaling=True)) == "STRICT_SPREAD"
    assert strategy([], nodes, RayOptions(placement="strict_pack")) == "STRICT_PACK"


def test_a_large_host_is_not_kept_from_the_only_node_that_holds_it() -> None:
    wanted = [{"CPU": 1.0}, {"CPU": 4.0}]
    assert fits(wanted, [node(4), node(1)], "STRICT_SPREAD")
    assert not fits(wanted, [node(4)], "SPREAD")
    assert fits([{"CPU": 2.0}] * 2, [node(4)], "STRICT_PACK")
    assert not fits([{"CPU": 2.0}] * 3, [node(4), node(2)], "STRICT_PACK")
    assert not fits([{"CPU": 1.0, "tpu": 1.0}], [node(4)], "SPREAD")
    assert not fits([{"CPU": 1.0}], [], "SPREAD")


def test_words_are_short() -> None:
    assert asked([{"CPU": 4.0, "GPU": 1.0}] * 2 + [{"CPU": 0.5}]) == "2 x (4 CPUs, 1 GPU) and 1 x (0.5 CPUs)"
    assert had([node(4, 1), node(4, 1), node(2, tpu=1)], [{"tpu": 1.0}]) == (
        "3 nodes: 2 with 4 CPUs, 1 GPU, 1 with 2 CPUs, 1 tpu"
    )
    assert had([]) == "0 nodes"
