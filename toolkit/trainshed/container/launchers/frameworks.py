"""TensorFlow and JAX: each process is told who the others are, and uses all devices of its host unless there are several.

Sources: "Multi-worker training with Keras" of tensorflow.org for TF_CONFIG, and `jax.distributed.initialize` for JAX_*.
"""

from __future__ import annotations

import json

from trainshed.contract.distributions import TRAITS

from ..supervisor.launch_plan import LaunchPlan, ProcessSpec
from .launch import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.contract.cluster import Cluster

    from .launch import Launch

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def tensorflow(launch: Launch) -> LaunchPlan:
    """The workers of tf.distribute.MultiWorkerMirroredStrategy: TF_CONFIG lists them, the first is the chief."""
    cluster = launch.cluster
    made = _plan(launch, "tensorflow", lambda rank, _: {"TF_CONFIG": tf_config(cluster, rank)})
    own = range(cluster.rank * cluster.processes_per_host, (cluster.rank + 1) * cluster.processes_per_host)
    return made.replace(span=cluster.world_size, listens=tuple(own))


def jax(launch: Launch) -> LaunchPlan:
    """The processes of `jax.distributed.initialize`, the first of which is the coordinator.

    JAX takes its address from the environment; a script hands it WORLD_SIZE and RANK as `num_processes` and `process_id`.
    """
    cluster = launch.cluster

    def variables(_: int, local_rank: int) -> dict[str, str]:
        values = {"JAX_COORDINATOR_ADDRESS": f"{cluster.address}:{cluster.port}"}
        if cluster.processes_per_host > 1 and cluster.hardware.gpus:
            values["JAX_LOCAL_DEVICE_IDS"] = str(local_rank)
        return values

    return _plan(launch, "jax", variables)


def tf_config(cluster: Cluster, rank: int) -> str:
    """The value of TF_CONFIG for a worker: addresses of all, and which of them it is.

    The port of worker n is the job's port + n, since workers of one host need ports of their own.
    """
    ranks = range(cluster.world_size)
    workers = [f"{_host_of(cluster, one)}:{cluster.port + one}" for one in ranks]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def _host_of(cluster: Cluster, rank: int) -> str:
    """Hosts that are processes of one machine have names that lead nowhere."""
    host = cluster.hosts[rank // cluster.processes_per_host]
    return cluster.address if host == cluster.master or cluster.address in LOOPBACK else host


def _plan(launch: Launch, launcher: str, variables: Callable[[int, int], dict[str, str]]) -> LaunchPlan:
    cluster = launch.cluster
    local_world = cluster.processes_per_host
    shared = {
        "WORLD_SIZE": str(cluster.world_size), "LOCAL_WORLD_SIZE": str(local_world),
        "MASTER_ADDR": cluster.address, "MASTER_PORT": str(cluster.port),
    }  # fmt: skip
    processes = []
    for local_rank in range(local_world):
        rank = cluster.rank * local_world + local_rank
        own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(local_rank), **variables(rank, local_rank)}
        processes.append(
            ProcessSpec(
                argv=(*launch.program.command, *launch.arguments),
                env={**launch.environment, **own},
                cwd=launch.program.folder,
                label=launch.label(rank) if cluster.world_size > 1 else "",
                log=launch.log_file(rank),
                rank=rank,
                signal_group=not launch.program.is_python,
            )
        )
    return LaunchPlan(
        processes=tuple(processes),
        grace_seconds=launch.job.settings.grace_seconds,
        notes=launch.notes,
        launcher=launcher,
        scratch=launch.scratch,
    )


TENSORFLOW = Launcher(TRAITS["tensorflow"], tensorflow)
JAX = Launcher(TRAITS["jax"], jax)
