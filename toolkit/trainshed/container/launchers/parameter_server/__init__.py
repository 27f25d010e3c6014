"""Parameter-server trainings: one chief, and workers, parameter servers and evaluators by number.

Only the chief ends by itself: workers and parameter servers of TensorFlow wait for its orders (`Server.join()`). So it is
the job's one rank, and the others are helpers of it, which `ServersWatcher` ends once it is done. TF_CONFIG is as in
"Parameter server training with ParameterServerStrategy" of tensorflow.org; the other variables are torchrun's, for
programs that are none of TensorFlow's.
"""

from __future__ import annotations

import json
import os

from trainshed.base.errors import LaunchError, some
from trainshed.base.record import Record
from trainshed.contract.distributions import TRAITS
from trainshed.contract.wire.roles import CHIEF, EVALUATOR, SERVER, WORKER, read_roles

from ...supervisor.launch_plan import LaunchPlan, ProcessSpec
from .. import script
from ..launch import Launcher
from .servers_watcher import ServersWatcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.cluster import Cluster

    from ..launch import Launch

KIND = "parameter_server"
FLAG = "sagemaker_parameter_server_enabled"
NAMES = {WORKER: "worker", SERVER: "parameter server", EVALUATOR: "evaluator"}
_TENSORFLOW_SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tensorflow_server.py")
LAST_PORT = 65_535
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Task(Record):
    """One process of the job.

    index: its number among those of its role.
    number: its number in the whole job; the chief's is 0.
    node: index of its host.
    """

    role: str
    index: int
    number: int
    node: int


def plan(launch: Launch) -> LaunchPlan:
    """This host's part of the tasks."""
    job, cluster = launch.job, launch.cluster
    settings, flagged = job.settings, job.distribution.asked_by == FLAG
    if flagged and len(cluster.hosts) == 1 and not settings.roles:
        note = f"{FLAG} starts no parameter server on a single host, as on the platform; trainshed_roles asks for some"
        return script.plan(launch.replace(notes=(*launch.notes, note)))
    if job.distribution.processes_per_host > 1:
        raise LaunchError(
            f"{job.distribution.processes_per_host} processes per host have no meaning for parameter servers",
            hint='trainshed_roles says how many there are of each, as in {"worker": 4, "ps": 2}',
        )
    tasks = tasks_of(read_roles(json.loads(settings.roles)) if settings.roles else {}, len(cluster.hosts))
    if cluster.port + len(tasks) > LAST_PORT:
        raise LaunchError(
            f"{len(tasks)} processes need a port each, from {cluster.port} on, and the last port is {LAST_PORT}",
            hint="take a lower trainshed_master_port",
        )
    idle = [host for node, host in enumerate(cluster.hosts) if all(task.node != node for task in tasks)]
    if idle:
        raise LaunchError(
            f"{some(idle, 8)} would have nothing to do: of {len(cluster.hosts)} hosts, the first one has the chief, workers "
            "go to the others in turn, parameter servers to all of them",
            hint="take fewer hosts, or more workers or parameter servers (trainshed_roles)",
        )
    by_tensorflow = settings.servers == "tensorflow" or (flagged and not settings.servers)
    here = [task for task in tasks if task.node == cluster.rank]
    return LaunchPlan(
        processes=tuple(_process(launch, tasks, task, here.index(task), len(here), by_tensorflow) for task in here),
        grace_seconds=settings.grace_seconds,
        notes=launch.notes,
        launcher=KIND,
        scratch=launch.scratch,
        span=len(tasks) + 1,
        listens=tuple(_offset(task) for task in here),
    )


def tasks_of(roles: dict[str, int], hosts: int) -> tuple[Task, ...]:
    """All processes of the job, in the order of their numbers.

    Args:
        roles: how many of each role; what is not named is as the platform has it: a parameter server on every host, and
            a worker on every host but the first, whose worker is the chief (on a single host there is one beside it).
        hosts: how many there are. Each role is dealt out anew: parameter servers from the first host on, workers from
            the second, evaluators from the last one backwards.
    """
    counts = {WORKER: max(1, hosts - 1), SERVER: hosts, EVALUATOR: 0, **roles}
    places = {WORKER: lambda index: 1 + index, SERVER: lambda index: index, EVALUATOR: lambda index: -1 - index}
    tasks = [Task(CHIEF, 0, 0, 0)]
    for role, place in places.items():
        for index in range(counts[role]):
            tasks.append(Task(role, index, len(tasks), place(index) % hosts))
    return tuple(tasks)


def tf_config(cluster: Cluster, tasks: tuple[Task, ...], task: Task) -> str:
    """The value of TF_CONFIG for a task. Evaluators are told the cluster, and are no part of it."""
    addresses: dict[str, list[str]] = {}
    for one in tasks:
        if one.role != EVALUATOR:
            addresses.setdefault(one.role, []).append(_address(cluster, one))
    return json.dumps({"cluster": addresses, "task": {"type": task.role, "index": task.index}})


def _address(cluster: Cluster, task: Task) -> str:
    """The port of task n is the job's port + 1 + n, the chief's the job's port: the next one is the roster's.

    Hosts that are processes of one machine have names that lead nowhere.
    """
    host = cluster.hosts[task.node]
    if host == cluster.master or cluster.address in LOOPBACK:
        host = cluster.address
    return f"{host}:{cluster.port + _offset(task)}"


def _offset(task: Task) -> int:
    """A task's port, counted from the job's."""
    return task.number and 1 + task.number


def _process(
    launch: Launch, tasks: tuple[Task, ...], task: Task, local_rank: int, local_world: int, by_tensorflow: bool
) -> ProcessSpec:
    cluster, program = launch.cluster, launch.program
    environment = {
        **_for_torch(cluster, local_world),
        **launch.environment,
        "TF_CONFIG": tf_config(cluster, tasks, task),
        "RANK": str(task.number),
        "WORLD_SIZE": str(len(tasks)),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world),
        "ROLE_NAME": task.role,
        "ROLE_RANK": str(task.index),
        "ROLE_WORLD_SIZE": str(sum(one.role == task.role for one in tasks)),
        "MASTER_ADDR": cluster.address,
        "MASTER_PORT": str(cluster.port),
    }
    if task.role == SERVER and cluster.hardware.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take all memory of GPUs that it holds no variable on
    serves = task.role == SERVER and by_tensorflow
    python = program.command[0] if program.is_python else "python3"
    name = task.role if task.role == CHIEF else f"{task.role}{task.index}"
    return ProcessSpec(
        argv=(python, _TENSORFLOW_SERVER) if serves else (*program.command, *launch.arguments),
        env=environment,
        cwd=program.folder,
        label=f"{cluster.current_host}:{name}",
        log=launch.log_file(0 if task.role == CHIEF else name),
        rank=None if serves else task.number,
        signal_group=not program.is_python and not serves,
        helper="" if task.role == CHIEF else f"{NAMES[task.role]} {task.index}",
    )


def _for_torch(cluster: Cluster, processes: int) -> dict[str, str]:
    """Variables that the user's own value wins over: threads, and the interface of torch.distributed.rpc."""
    values = {"OMP_NUM_THREADS": str(max(1, cluster.hardware.cpus // processes))}
    return {**values, "TP_SOCKET_IFNAME": cluster.interface} if cluster.interface else values


def _describe(_: Cluster, plan: LaunchPlan) -> str:
    return f"{len(plan.processes)} of the job's {plan.processes[0].env['WORLD_SIZE']} processes are on this host"


LAUNCHER = Launcher(
    TRAITS[KIND],
    plan,
    watchers=lambda plan, roster, _: [ServersWatcher(len(roster.names), plan.grace_seconds, roster)],
    describe=_describe,
)
