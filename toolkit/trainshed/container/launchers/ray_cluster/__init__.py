"""Ray inside one job: a head on the first host, a node on each of the others, and the script beside the head.

Not to be confused with the place `--on ray`, where a Ray cluster that is there already runs jobs. Here the cluster is the
job's own: it begins and ends with it, and knows the job's hosts alone.

    plan         what this host runs: Ray's node, and on the first host the script, once all nodes have joined (this module)
    ray_watcher  starts both in their turn, and ends the nodes when the script is done
    ray_node     runs in the user's Python around `ray start`, whose options are Ray's public command line
"""

from __future__ import annotations

import os

from trainshed.base.errors import LaunchError
from trainshed.contract.distributions import TRAITS

from ...supervisor.launch_plan import LaunchPlan, ProcessSpec
from ..launch import Launcher
from .ray_watcher import JOINED, RayWatcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.base.check import Check
    from trainshed.contract.cluster import Cluster

    from ..launch import Launch

KIND = "ray"
_NODE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray_node.py")
_SHARED_MEMORY = "/dev/shm"
_OBJECTS_SHARE = 0.3  # of a host's memory is Ray's own default for its objects
_LEAST_OBJECTS = 80_000_000  # bytes; Ray takes no less than 75 MiB
_MOST_OBJECTS = 200_000_000_000  # bytes; Ray's own limit


def plan(launch: Launch) -> LaunchPlan:
    """This host's node of Ray, and the script on the first host.

    Raises:
        LaunchError: several processes per host are asked for.
    """
    job, cluster = launch.job, launch.cluster
    if job.distribution.processes_per_host > 1:
        raise LaunchError(
            f"{job.distribution.processes_per_host} processes per host have no meaning for the distribution ray",
            hint="the script says how many workers it wants, as in ScalingConfig(num_workers=4)",
        )
    folder = f"{launch.scratch}/ray"  # its sockets, logs, and objects that its store cannot hold
    options, notes = _objects(cluster, folder)
    return LaunchPlan(
        processes=(),
        grace_seconds=job.settings.grace_seconds,
        notes=(*launch.notes, *notes),
        launcher=KIND,
        scratch=launch.scratch,
        later=(_node(launch, folder, options), *([_script(launch)] if cluster.rank == 0 else ())),
        start_seconds=job.settings.host_timeout_seconds,
    )


def _node(launch: Launch, folder: str, options: tuple[str, ...]) -> ProcessSpec:
    """Ray's own processes on this host, below one of ours. They run with the script's Python, which has to have Ray."""
    cluster, program = launch.cluster, launch.program
    python = program.command[0] if program.is_python else "python3"
    address = f"{cluster.address}:{cluster.port}"
    where = ("--head", str(cluster.port)) if cluster.rank == 0 else ("--address", address)
    # What a process of the job says of another cluster is not for the nodes: `ray start` would take it for an address.
    environment = {name: value for name, value in launch.environment.items() if name != "RAY_ADDRESS"}
    return ProcessSpec(
        argv=(
            *(python, _NODE, JOINED, folder, *where),
            *("--num-cpus", str(cluster.hardware.cpus), "--num-gpus", str(cluster.hardware.gpus), *options),
        ),
        env={**_WHOLE_LINES, **environment, **_QUIET},
        cwd=program.folder,
        label=f"{cluster.current_host}:ray",
        helper="Ray's head" if cluster.rank == 0 else "Ray's node",
    )


def _script(launch: Launch) -> ProcessSpec:
    cluster = launch.cluster
    own = {"RAY_ADDRESS": f"{cluster.address}:{cluster.port}"}
    return ProcessSpec(
        argv=(*launch.program.command, *launch.arguments),
        env={**_WHOLE_LINES, **launch.environment, **_QUIET, **own},
        cwd=launch.program.folder,
        label=launch.label(0) if len(cluster.hosts) > 1 else "",
        log=launch.log_file(0),
        rank=0,
        signal_group=not launch.program.is_python,
    )


_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}  # else Ray reports its use to its makers
# Else a metric's line is left out where another worker has printed a similar one, and logs have terminals' colours.
_WHOLE_LINES = {"RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0"}


def _objects(cluster: Cluster, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Options for Ray's store of objects, and notes on what it lacks.

    Ray keeps objects in shared memory, of which containers have 64 MB unless they are told otherwise; it then takes /tmp
    without a word of ours, and a store that is larger than the shared memory ends a worker by SIGBUS.
    """
    wanted = int(min(cluster.hardware.memory_bytes * _OBJECTS_SHARE or _LEAST_OBJECTS, _MOST_OBJECTS))
    wanted = max(wanted, _LEAST_OBJECTS)
    there = cluster.hardware.shm_bytes
    size = f"{there / 1e6:.0f} MB"
    if there >= wanted:
        return ("--object-store-memory", str(wanted)), ()
    larger = "a larger one (docker run --shm-size 8g; in Kubernetes an emptyDir of medium Memory there)"
    if there * 0.9 < _LEAST_OBJECTS:
        return (
            ("--object-store-memory", str(wanted), "--plasma-directory", folder),
            (f"{_SHARED_MEMORY} has {size}: Ray keeps its objects in files of {folder}, which is slower; give it {larger}",),
        )
    return (
        ("--object-store-memory", str(int(there * 0.9))),
        (f"{_SHARED_MEMORY} has {size}: Ray's objects get that, and not {wanted / 1e6:.0f} MB; give it {larger}",),
    )


def _check(plan: LaunchPlan) -> list[Check]:
    """Whether the script's Python has Ray, and what its plan says of shared memory."""
    import subprocess

    from trainshed.base.check import fail, ok, warn

    node = plan.later[0]
    asked = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None)"
    try:
        found = subprocess.run([node.argv[0], "-c", asked], env=node.env, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        found = False
    if not found:
        return [fail("launcher", f"the job asks for Ray, which {node.argv[0]} does not have", "pip install 'ray[train]'")]
    return [ok("launcher", f"ray: {node.helper} on this host"), *(warn("launcher", note) for note in plan.notes)]


def _describe(cluster: Cluster, _: LaunchPlan) -> str:
    script = "the script and Ray's head" if cluster.rank == 0 else f"a node of Ray for the script on {cluster.master}"
    return f"{script}, which has {len(cluster.hosts)} host(s)"


LAUNCHER = Launcher(TRAITS[KIND], plan, lambda plan, roster, _: [RayWatcher(plan, roster)], _check, _describe)
