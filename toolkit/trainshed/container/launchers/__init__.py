"""Turns a job, a cluster and a program into a launch plan: one module a distribution; pure, nothing is started here."""

from __future__ import annotations

import os

from trainshed.contract.environment import script_environment
from trainshed.contract.errors import LaunchError
from trainshed.contract.hyperparameters import to_argv
from trainshed.contract.record import Record

from . import pipeline, script, torchrun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import Job

    from ..program import Program
    from ..supervisor.plan import LaunchPlan

LAUNCHERS = {"script": script.plan, "torchrun": torchrun.plan, "pipeline": pipeline.plan}


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

    def log_file(self, rank: int) -> str:
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
    kind = job.distribution.kind if cluster.participates else "script"
    if kind not in LAUNCHERS:
        raise LaunchError(
            f"the distribution {kind!r} (asked for by {job.distribution.asked_by}) is not available in this version",
            hint=f"available: {', '.join(LAUNCHERS)}",
        )
    arguments = to_argv(job.hyperparameters.user, job.settings.argv)
    variables, notes = script_environment(
        job, cluster, code_dir=program.folder, entry_point=program.name, arguments=arguments
    )
    launch = Launch(
        job=job,
        cluster=cluster,
        program=program,
        arguments=tuple(arguments),
        environment={**_defaults(cluster, program, environ), **environ, **variables, **_always(program, environ)},
        scratch=scratch,
        notes=tuple(notes),
    )
    return LAUNCHERS[kind](launch)


def _defaults(cluster: Cluster, program: Program, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that the user's own value wins over."""
    values = {
        "MASTER_ADDR": cluster.address,
        "MASTER_PORT": str(cluster.port),
        "PYTHONUNBUFFERED": "1",  # else lines sit in the script's buffer while people wait for them
        "PYTHONFAULTHANDLER": "1",  # a crash in native code then shows the Python line that led there
    }
    if cluster.interface:
        values["NCCL_SOCKET_IFNAME"] = values["GLOO_SOCKET_IFNAME"] = cluster.interface
    return values


def _always(program: Program, environ: Mapping[str, str]) -> dict[str, str]:
    """The code folder comes first on Python's path, then packages installed for the job, then the user's own."""
    folders = [program.folder, program.packages, environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}
