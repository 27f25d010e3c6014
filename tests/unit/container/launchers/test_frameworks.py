"""What processes of TensorFlow and JAX are told."""

from __future__ import annotations

import json

from trainshed.container.launchers.frameworks import tf_config
from trainshed.contract.cluster import Cluster

HOSTS = ("algo-1", "algo-2", "algo-3")


def test_workers_have_the_addresses_of_their_hosts() -> None:
    cluster = Cluster(hosts=HOSTS, current_host="algo-2", rank=1, address="algo-1", port=7777)

    assert json.loads(tf_config(cluster, 1)) == {
        "cluster": {"worker": ["algo-1:7777", "algo-2:7778", "algo-3:7779"]},
        "task": {"type": "worker", "index": 1},
    }


def test_workers_of_one_machine_have_its_address_and_ports_of_their_own() -> None:
    cluster = Cluster(hosts=HOSTS[:2], current_host="algo-2", rank=1, processes_per_host=2, port=9000)

    workers = json.loads(tf_config(cluster, 3))["cluster"]["worker"]
    assert workers == [f"127.0.0.1:{port}" for port in (9000, 9001, 9002, 9003)]
