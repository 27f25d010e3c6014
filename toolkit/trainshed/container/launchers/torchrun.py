"""torch.distributed ranks on one host or many.

A fixed number of ranks is started by our own supervisor with torchrun's whole environment contract, so that
`torch.distributed`, Accelerate and Lightning behave as under torchrun (torch.distributed.elastic's
`LocalElasticAgent._start_workers` documents the names). `TORCHELASTIC_USE_AGENT_STORE` stays unset: with it rank 0
would expect torchrun to serve the store. `trainshed_engine=torchrun` starts torch's own elastic agent instead.
"""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import LaunchError
from trainshed.contract.choices import DATA_PARALLEL, PYTORCH_DDP
from trainshed.contract.distributions import TRAITS
from trainshed.contract.hyperparameters import truthy
from trainshed.contract.wire.variables import AGENT_CHECKPOINTS, AGENT_EVENTS, AGENT_LOST, IN_PLACE

from ..supervisor.launch_plan import LaunchPlan, ProcessSpec
from .launch import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .launch import Launch

# Variables that ranks must not inherit from an outer torchrun or `train`.
_FOREIGN = ("TORCHELASTIC_USE_AGENT_STORE", IN_PLACE)
LAST_CALL = 10  # seconds that the agents wait for further hosts once there are enough
LAST_CALL_AGAIN = 3  # the same under a new leader: the hosts' `train` have just met
_ERROR_HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "error_hook")


def plan(launch: Launch) -> LaunchPlan:
    """One process a rank, or the elastic agent."""
    settings = launch.job.settings
    if settings.engine == "mpi":
        raise LaunchError(
            "trainshed_engine = mpi works with the distribution pipeline, not with torchrun",
            hint="trainshed_distribution = mpi starts any program with mpirun",
        )
    if truthy(launch.job.hyperparameters.get(DATA_PARALLEL)):  # scripts may be written for Amazon's library
        launch = launch.replace(environment={**launch.environment, "PYTHONPATH": with_them(launch.environment)})
    agent = settings.engine == "torchrun"
    if settings.min_nodes and not agent:
        raise LaunchError(
            f"trainshed_min_nodes = {settings.min_nodes} needs torch's elastic agent",
            hint="set trainshed_engine to torchrun as well",
        )
    if settings.min_nodes > len(launch.cluster.hosts):
        raise LaunchError(f"trainshed_min_nodes = {settings.min_nodes}, but the job has {len(launch.cluster.hosts)} host(s)")
    processes = _agent(launch) if agent else _ranks(launch)
    ignored = "sagemaker_distributed_dataparallel_custom_mpi_options"
    notes = launch.notes
    if launch.job.hyperparameters.get(ignored):
        notes += (f"{ignored} has no effect: this job does not use mpirun",)
    if settings.bind != "none" and settings.engine != "torchrun" and not processes[0].cpus:
        notes += (f"trainshed_bind = {settings.bind}: there are fewer CPUs than ranks, so no rank is bound",)
    return LaunchPlan(
        processes=processes,
        grace_seconds=settings.grace_seconds,
        notes=notes,
        launcher="torchrun",
        scratch=launch.scratch,
        agent_events=agent_events(launch.scratch) if agent else "",
    )


def _common(launch: Launch, bound: tuple[int, ...] = ()) -> dict[str, str]:
    """Shared by all ranks; the user's own value wins.

    Args:
        bound: the CPUs that a rank is bound to, () for all.
    """
    cluster, environment = launch.cluster, launch.environment
    threads = max(1, cluster.hardware.cpus // cluster.processes_per_host)
    if bound:
        threads = min(threads, len(bound))
    defaults = {"OMP_NUM_THREADS": str(threads), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if cluster.hardware.gpus:
        from .flight_recorder import recorder_settings

        defaults.update(recorder_settings(launch.job.paths.output_data, launch.scratch, environment))
    return {**defaults, **{name: value for name, value in environment.items() if name not in _FOREIGN}}


def _ranks(launch: Launch) -> tuple[ProcessSpec, ...]:
    cluster = launch.cluster
    local_world = cluster.processes_per_host
    bound = _bound(launch)
    return tuple(
        ProcessSpec(
            argv=(*launch.program.command, *launch.arguments),
            env={**_common(launch, bound[local_rank]), **_rank_variables(launch, local_rank)},
            cwd=launch.program.folder,
            label=launch.label(cluster.rank * local_world + local_rank) if cluster.world_size > 1 else "",
            log=launch.log_file(cluster.rank * local_world + local_rank),
            rank=cluster.rank * local_world + local_rank,
            signal_group=not launch.program.is_python,
            cpus=bound[local_rank],
        )
        for local_rank in range(local_world)
    )


def _bound(launch: Launch) -> list[tuple[int, ...]]:
    """The CPUs of each rank on this host, as `trainshed_bind` asks for."""
    how, ranks = launch.job.settings.bind, launch.cluster.processes_per_host
    if how == "none":
        return [()] * ranks
    from .binding import bind, read_topology

    return bind(how, read_topology(launch.environment, os.sched_getaffinity(0)), ranks)


def _rank_variables(launch: Launch, local_rank: int) -> dict[str, str]:
    cluster = launch.cluster
    local_world = cluster.processes_per_host
    rank, world = cluster.rank * local_world + local_rank, cluster.world_size
    return {
        **_open_mpis_names(launch, local_rank),
        **_in_place(launch),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(cluster.rank),
        "GROUP_WORLD_SIZE": str(len(cluster.hosts)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": cluster.address,
        "MASTER_PORT": str(cluster.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": _run_id(launch),
        "TORCHELASTIC_ERROR_FILE": error_file(launch.scratch, rank),
    }


def _in_place(launch: Launch) -> dict[str, str]:
    """Where ranks say that they live on when another one is lost: nowhere where `train` starts all of them again."""
    cluster, kind = launch.cluster, launch.job.distribution.kind
    alone = kind == "torchrun" and launch.job.settings.max_restarts and len(cluster.hosts) == 1 and cluster.world_size > 1
    return {IN_PLACE: f"{launch.scratch}/in-place"} if alone else {}


def _open_mpis_names(launch: Launch, local_rank: int) -> dict[str, str]:
    """What mpirun tells a rank, which scripts read where Amazon's images start ranks with it: SMDDP and `pytorchddp`.

    The "node rank" is Open MPI's: the rank's place among all that runs on its host, not the host's place.
    """
    if not any(truthy(launch.job.hyperparameters.get(flag)) for flag in (DATA_PARALLEL, PYTORCH_DDP)):
        return {}
    cluster = launch.cluster
    numbers = {
        "RANK": cluster.rank * cluster.processes_per_host + local_rank,
        "SIZE": cluster.world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": cluster.processes_per_host,
        "NODE_RANK": local_rank,
    }
    return {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in numbers.items()}


def error_file(scratch: str, rank: int) -> str:
    """The file into which `torch.distributed.elastic.multiprocessing.errors.record` puts a rank's exception."""
    return f"{scratch}/rank{rank}.error.json"


def agent_events(scratch: str) -> str:
    """The file in which torch's agent notes its restarts (`elastic`)."""
    return f"{scratch}/agent-restarts.jsonl"


def lost_hosts(scratch: str) -> str:
    """The file from which torch's agent learns of hosts that are lost."""
    return f"{scratch}/lost-hosts"


def moved(plan: LaunchPlan, term: int, address: str, *, leads: bool, most: int) -> LaunchPlan:
    """The plan of an elastic agent under another leader, which serves a new rendezvous.

    Args:
        term: the leader's number.
        address: where the other hosts find it.
        leads: whether it is this host.
        most: how many hosts there may be.
    """
    (agent,) = plan.processes
    argv = []
    for word in agent.argv:
        name, _, value = word.partition("=")
        if name == "--nnodes":
            value = f"{value.partition(':')[0]}:{most}"
        elif name == "--rdzv-id":
            value = f"{value}-{term}"
        elif name == "--rdzv-endpoint":
            value = f"{address}:{value.rpartition(':')[2]}"
        elif name == "--rdzv-conf":
            settings = dict(pair.split("=") for pair in value.split(","))
            settings.update(is_host=str(leads).lower(), last_call_timeout=str(LAST_CALL_AGAIN))
            value = ",".join("=".join(pair) for pair in settings.items())
        else:
            argv.append(word)
            continue
        argv.append(f"{name}={value}")
    return plan.replace(processes=(agent.replace(argv=tuple(argv)),))


def _run_id(launch: Launch) -> str:
    return launch.job.name or "trainshed"


def _agent(launch: Launch) -> tuple[ProcessSpec, ...]:
    """torchrun's agent with a c10d rendezvous, which host 0 is set to serve, since host names need not match.

    The hosts' `train` have met by then, so with fewer hosts allowed the agents need not wait long for more.
    """
    cluster, settings = launch.cluster, launch.job.settings
    count = len(cluster.hosts)
    least = settings.min_nodes or count
    # Each lost host costs its peers a restart: their collectives fail.
    restarts = settings.max_restarts or count - least
    rendezvous = [f"is_host={'true' if cluster.rank == 0 else 'false'}"]
    if least < count:
        rendezvous += [f"last_call_timeout={LAST_CALL}", f"join_timeout={settings.host_timeout_seconds:.0f}"]
    argv = (
        sys.executable,
        "-m",
        f"{__package__}.elastic",
        f"--nnodes={count if least == count else f'{least}:{count}'}",
        f"--nproc-per-node={cluster.processes_per_host}",
        f"--max-restarts={restarts}",
        f"--rdzv-id={_run_id(launch)}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={cluster.address}:{cluster.port}",
        f"--rdzv-conf={','.join(rendezvous)}",
        f"--log-dir={launch.scratch}/agent",  # by default a temporary folder that it leaves behind
        "--no-python",
        *launch.program.command,
        *launch.arguments,
    )
    environment = _common(launch)
    own = {
        AGENT_EVENTS: agent_events(launch.scratch),
        AGENT_LOST: lost_hosts(launch.scratch),
        AGENT_CHECKPOINTS: launch.job.paths.checkpoints,
        "PYTHONPATH": os.pathsep.join(folder for folder in (_ERROR_HOOK, environment.get("PYTHONPATH", "")) if folder),
    }
    return (
        ProcessSpec(
            argv=argv,
            env={**environment, **own},
            cwd=launch.program.folder,
            label=launch.cluster.current_host if len(cluster.hosts) > 1 else "",
            log=launch.log_file(cluster.rank),
        ),
    )


LAUNCHER = Launcher(TRAITS["torchrun"], plan)


# The folder whose `smdistributed` stands for Amazon's.
_COMPAT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "compat")


def with_them(environment: Mapping[str, str]) -> str:
    """PYTHONPATH with our stand-ins after what is in it already."""
    return os.pathsep.join(folder for folder in (environment.get("PYTHONPATH", ""), _COMPAT) if folder)
