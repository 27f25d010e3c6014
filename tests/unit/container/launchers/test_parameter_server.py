"""Which processes a parameter-server training has, and where each of them listens."""

from __future__ import annotations

import json

import pytest

from trainshed.container.launchers.parameter_server import tasks_of, tf_config
from trainshed.contract.cluster import Cluster
from trainshed.contract.wire.roles import read_roles

HOSTS = ("algo-1", "algo-2", "algo-3")


def placed(roles: dict[str, int], hosts: int) -> list[tuple[str, int, int]]:
    """Role, index and host of every process, in the order of their numbers."""
    tasks = tasks_of(roles, hosts)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    return [(task.role, task.index, task.node) for task in tasks]


def test_without_roles_every_host_has_a_server_and_trains() -> None:
    assert placed({}, 3) == [
        ("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, 0), ("ps", 1, 1), ("ps", 2, 2),
    ]  # fmt: skip
    assert placed({}, 1) == [("chief", 0, 0), ("worker", 0, 0), ("ps", 0, 0)]


def test_roles_are_dealt_to_the_hosts_in_turn() -> None:
    assert placed({"worker": 4, "ps": 1, "evaluator": 1}, 3) == [
        ("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("worker", 2, 0), ("worker", 3, 1),
        ("ps", 0, 0), ("evaluator", 0, 2),
    ]  # fmt: skip


def test_every_process_listens_on_its_host_and_evaluators_nowhere() -> None:
    cluster = Cluster(hosts=HOSTS, current_host="algo-3", rank=2, address="algo-1", port=7777)
    tasks = tasks_of({"evaluator": 1}, 3)

    assert json.loads(tf_config(cluster, tasks, tasks[-1])) == {
        "cluster": {
            "chief": ["algo-1:7777"],  # the next port is where the hosts meet
            "worker": ["algo-2:7779", "algo-3:7780"],
            "ps": ["algo-1:7781", "algo-2:7782", "algo-3:7783"],
        },
        "task": {"type": "evaluator", "index": 0},
    }


def test_hosts_that_are_processes_of_one_machine_share_its_address() -> None:
    cluster = Cluster(hosts=HOSTS[:2], current_host="algo-1", port=9000)
    tasks = tasks_of({"ps": 1}, 2)

    told = json.loads(tf_config(cluster, tasks, tasks[0]))["cluster"]
    assert told == {"chief": ["127.0.0.1:9000"], "worker": ["127.0.0.1:9002"], "ps": ["127.0.0.1:9003"]}


@pytest.mark.parametrize(
    ("roles", "problem"),
    [
        ([1], "must be an object such as"),
        ({"wroker": 2}, "'wroker' is not a role: chief, worker, ps, evaluator are (did you mean 'worker'?)"),
        ({"worker": -1}, "worker must be a whole number from 0"),
        ({"worker": True}, "worker must be a whole number from 0"),
        ({"worker": 2.0}, "worker must be a whole number from 0"),
        ({"worker": "2"}, "worker must be a whole number from 0"),
        ({"worker": 10**9}, "to 4096"),
        ({"ps": 0}, "ps must be a whole number from 1"),
        ({"chief": 0}, "chief must be a whole number from 1"),
        ({"chief": 2}, "chief must be 1"),
        ({3: 2}, "3 is not a role"),
    ],
)
def test_wrong_roles_are_refused_with_the_reason(roles: object, problem: str) -> None:
    with pytest.raises(ValueError) as error:
        read_roles(roles)
    assert problem in str(error.value)


def test_roles_are_kept_as_they_are_written() -> None:
    assert read_roles({"ps": 2, "chief": 1}) == {"chief": 1, "ps": 2} and read_roles({}) == {}
