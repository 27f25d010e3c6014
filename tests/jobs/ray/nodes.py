"""Holds a Ray cluster on one machine, in the Python that has ray; told what to do by lines on standard input.

    nodes.py FOLDER CPUS...     a node for each number of CPUs; the first is the head

`kill N` ends all processes of node N by SIGKILL, `add CPUS` starts one more, `version TEXT` has the head say that it is of
another version; the end of the input ends all. Each is answered by a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

STORE = 80_000_000  # bytes of a node's object store: the least that Ray takes is 75 MB


def main(folder: str, cpus: list[int]) -> None:
    os.environ["RAY_TMPDIR"] = f"{folder}/ray"  # Ray's own variable; it looks there for a cluster of this machine, too
    os.mkdir(f"{folder}/ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes: list[Any] = []

    def add(count: int) -> None:
        nodes.append(
            cluster.add_node(
                num_cpus=count, object_store_memory=STORE, include_dashboard=False, env_vars={"NODE": str(len(nodes))}
            )
        )

    try:
        for count in cpus:
            add(count)
        cluster.wait_for_nodes()
        print(json.dumps({"address": cluster.address}), flush=True)
        for line in sys.stdin:
            word, _, value = line.strip().partition(" ")
            if word == "kill":
                kill(nodes[int(value)])
            elif word == "add":
                add(int(value))
                cluster.wait_for_nodes()
            elif word == "version":
                pretend(cluster.address, value)
            print("done", flush=True)
    finally:
        for node in reversed(nodes):
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def kill(node: Any) -> None:
    """SIGKILL to everything of a node, its workers too: a machine whose power goes."""
    found = [info.process.pid for infos in node.all_processes.values() for info in infos]
    for pid in [*_children(found), *found]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _children(pids: list[int]) -> list[int]:
    import psutil

    return [child.pid for pid in pids if psutil.pid_exists(pid) for child in psutil.Process(pid).children(recursive=True)]


def pretend(address: str, version: str) -> None:
    """What Ray compares when somebody joins is in the head's store."""
    from ray._raylet import GcsClient

    client = GcsClient(address=address)
    told = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", b"cluster"))
    client.internal_kv_put(b"CLUSTER_METADATA", json.dumps({**told, "ray_version": version}).encode(), True, b"cluster")


if __name__ == "__main__":
    main(sys.argv[1], [int(one) for one in sys.argv[2:]])
