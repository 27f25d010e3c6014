"""Turns a job, a cluster and a program into a launch plan: one module a distribution; pure, nothing is started here."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

import trainshed
from trainshed.base.errors import LaunchError
from trainshed.base.record import Record
from trainshed.contract.environment import script_environment
from trainshed.contract.hyperparameters import to_argv
from trainshed.contract.settings import COPY_TO_VARIABLE
from trainshed.contract.wire.variables import AUTOPATCH, NOTICE_FILE, PROBE

from ..compiler.packages import version_of
from . import script, torchrun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import Job

    from ..program import Program
    from ..roster.roster import Roster
    from ..supervisor.launch_plan import LaunchPlan
    from ..supervisor.watcher import Watcher

PEERS_MODULES = f"{os.path.dirname(os.path.abspath(trainshed.__file__))}/compat/sagemaker_training_api"
STACKS_HOOK = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/hangs/hook"


def _mpi(launch: Launch) -> LaunchPlan:
    from . import mpi  # these three only where a job asks for them: every start pays for what is imported above

    return mpi.plan(launch)


def _pipeline(launch: Launch) -> LaunchPlan:
    from . import pipeline

    return pipeline.plan(launch)


def _xla(launch: Launch) -> LaunchPlan:
    from . import xla

    return xla.plan(launch)


LAUNCHERS: dict[str, Callable[[Launch], LaunchPlan]] = {
    "script": script.plan,
    "torchrun": torchrun.plan,
    "mpi": _mpi,
    "pipeline": _pipeline,
    "xla": _xla,
}


class Launch(Record):
    """What every launcher starts from.

    arguments: the script's command line.
    environment: the whole environment that all processes of the script share.
    scratch: a folder for small files of this run, gone afterwards.
    """

    job: Job
    cluster: Cluster
    program: Program
    arguments: tuple[str, ...]
    environment: dict[str, str]
    scratch: str
    notes: tuple[str, ...] = ()

    def log_file(self, rank: int | str) -> str:
        """Where a rank's output is kept; the host is in the name, since hosts may share the folder."""
        return f"{self.job.paths.logs}/{self.cluster.current_host}.rank{rank}.log"

    def label(self, rank: int) -> str:
        """Tag of a rank's log lines."""
        return f"{self.cluster.current_host}:{rank}"


def plan(job: Job, cluster: Cluster, program: Program, environ: Mapping[str, str], scratch: str) -> LaunchPlan:
    """The processes to start on this host.

    Raises:
        LaunchError: this distribution, or this program under it, cannot be started.
    """
    # A launcher of the image's own decides itself what a distribution is.
    kind = job.distribution.kind if cluster.participates and not job.training_module else "script"
    if kind not in LAUNCHERS:
        raise LaunchError(
            f"the distribution {kind!r} (asked for by {job.distribution.asked_by}) is not available in this version",
            hint=f"available: {', '.join(LAUNCHERS)}",
        )
    notice_file = f"{scratch}/notice.json"
    arguments = to_argv(job.hyperparameters.user, job.settings.argv)
    variables, notes = script_environment(
        job, cluster, code_dir=program.folder, entry_point=program.name, arguments=arguments
    )
    if job.settings.bind != "none" and (kind != "torchrun" or job.settings.engine != "trainshed"):
        notes.append(
            f"trainshed_bind = {job.settings.bind} is for ranks that trainshed itself starts, and has no effect here"
        )
    launch = Launch(
        job=job,
        cluster=cluster,
        program=program,
        arguments=tuple(arguments),
        environment={
            **_defaults(job, cluster),
            **environ,
            **variables,
            **_always(job, cluster, program, environ),
            NOTICE_FILE: notice_file,
        },
        scratch=scratch,
        notes=tuple(notes),
    )
    if cluster.participates and (job.compiler.on or kind == "xla"):
        from ..compiler.prepare import prepare  # as above

        prepared = prepare(launch, kind)
        made = LAUNCHERS[prepared.launcher](prepared.launch)
        processes = tuple(spec.replace(argv=(*prepared.prefix, *spec.argv)) for spec in made.processes)
        made = made.replace(processes=processes, compiler=prepared.shown, compile=prepared.plan, says=prepared.says)
    else:
        made = LAUNCHERS[kind](_on_torch(launch))
    return made.replace(notice_file=notice_file)


def _on_torch(launch: Launch) -> Launch:
    """Accelerate takes an installed torch_xla as the order to train on it, whatever else it is told."""
    if not version_of("torch_xla", launch.environment["PYTHONPATH"].split(os.pathsep)):
        return launch
    return launch.replace(environment={"USE_TORCH_XLA": "0", **launch.environment})


def watchers(plan: LaunchPlan, roster: Roster, say: Callable[[str], None]) -> list[Watcher]:
    """The launcher's own watchers of the run, if it has any. The plan's scratch folder has to be there."""
    if plan.mpi is None:
        return []
    from .mpi import MpiPlan
    from .mpi.mpi_watcher import MpiWatcher  # sockets are slow to load

    assert isinstance(plan.mpi, MpiPlan)
    return [MpiWatcher(plan.mpi, roster, say)]


def _defaults(job: Job, cluster: Cluster) -> dict[str, str]:
    """Variables that the user's own value wins over."""
    values = {
        "MASTER_ADDR": cluster.address,
        "MASTER_PORT": str(cluster.port),
        "PYTHONUNBUFFERED": "1",  # else lines sit in the script's buffer while people wait for them
        "PYTHONFAULTHANDLER": "1",  # a crash in native code then shows the Python line that led there
    }
    if len(cluster.hosts) > 1:
        from .network_settings import network_settings  # a table that jobs on one host never need

        values.update(network_settings(cluster, job.resources.current_instance_type).variables)
    if cluster.interface:
        values["NCCL_SOCKET_IFNAME"] = values["GLOO_SOCKET_IFNAME"] = cluster.interface
    return values


def _always(job: Job, cluster: Cluster, program: Program, environ: Mapping[str, str]) -> dict[str, str]:
    """The code folder comes first on Python's path, then packages installed for the job, then the user's own.

    Before all of them come our start-up hooks, which take themselves off the path at the start and let a `sitecustomize` of
    the user's own run: the one that answers when we ask for stacks, and, in jobs that ask for it, the one that hooks into
    training loops. Programs that came with those packages come first on PATH. Last come the names of Amazon's toolkit.
    """
    folders_of_hooks = [STACKS_HOOK] if job.settings.stacks == "on" else []
    probe = environ.get(PROBE, "")
    hooks = [name for name, asked in (("checkpoint", job.settings.checkpoint == "auto"), ("probe", probe)) if asked]
    if hooks or job.compiler.on:
        folders_of_hooks.append(os.path.join(os.path.dirname(trainshed.__file__), "autopatch", "startup"))
    own = [program.folder, program.packages, environ.get("PYTHONPATH", "")]
    folders = [*folders_of_hooks, *own, *_peers_modules(own)]
    values = {"PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}
    if hooks:
        values[AUTOPATCH] = ",".join(hooks)
    if job.settings.checkpoint_copy_to:
        values[COPY_TO_VARIABLE] = job.settings.checkpoint_copy_to
    if probe.isdigit():
        from trainshed.contract.wire.batch_probe import Probe

        share = cluster.hardware.memory_bytes // cluster.processes_per_host
        told = Probe(int(probe), f"{job.paths.output_data}/probe", cluster.current_host, share)
        values[PROBE] = told.to_text()
    if program.scripts:
        values["PATH"] = os.pathsep.join((program.scripts, environ.get("PATH", os.defpath)))
    return values


def _peers_modules(own: list[str]) -> list[str]:
    """The folder that stands for Amazon's toolkit, for scripts that import it; none where the real one is installed."""
    path = [folder for folders in own for folder in folders.split(os.pathsep) if folder]
    if any(PathFinder.find_spec(name, [*path, *sys.path]) for name in ("sagemaker_training", "sagemaker_containers")):
        return []
    return [PEERS_MODULES]
