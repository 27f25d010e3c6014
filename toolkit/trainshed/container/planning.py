"""The fourth step: turns a job, a cluster and a program into a launch plan; it starts nothing."""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import LaunchError
from trainshed.base.record import Record
from trainshed.contract.distributions import DEFAULT, traits_of
from trainshed.contract.environment import script_environment
from trainshed.contract.hyperparameters import to_argv
from trainshed.contract.wire.variables import NOTICE_FILE

from .launchers import accelerate_files, launcher_of
from .launchers.launch import Launch
from .launchers.rank_environment import default_variables, fixed_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

    from .program import Program
    from .supervisor.launch_plan import LaunchPlan


class Planned(Record):
    """The results of the first four steps of `train`: everything that the fifth needs."""

    job: TrainingJob
    cluster: Cluster
    program: Program
    plan: LaunchPlan


def plan(job: TrainingJob, cluster: Cluster, program: Program, environ: Mapping[str, str], scratch: str) -> LaunchPlan:
    """The processes to start on this host.

    Args:
        scratch: path of a folder for small files of this run; it need not exist yet.

    Raises:
        LaunchError: this distribution, or this program under it, cannot be started.
    """
    # An image's own launcher decides itself what a distribution is.
    kind = job.distribution.kind if cluster.participates and not job.training_module else DEFAULT
    traits = traits_of(kind)
    if job.settings.min_nodes and not traits.uses_agent and len(cluster.hosts) > 1 and cluster.participates:
        raise LaunchError(
            f"trainshed_min_nodes = {job.settings.min_nodes} needs torch's elastic agent, which does not start a {kind} job",
            hint="drop it: all hosts of this job have to be there",
        )
    notice_file = f"{scratch}/notice.json"
    launch = _accelerated(_launch(job, cluster, program, environ, scratch, kind, notice_file), kind)
    if cluster.participates and (job.compiler.on or traits.compiles):
        made = _compiled(launch, kind)
    else:
        made = launcher_of(kind).plan(_without_torch_xla(launch))
    return _with_port(made, cluster).replace(notice_file=notice_file)


def _with_port(made: LaunchPlan, cluster: Cluster) -> LaunchPlan:
    """The plan with the job's port, on which rank 0 listens unless the launcher says more."""
    return made.replace(port=cluster.port, listens=made.listens or ((0,) if cluster.rank == 0 else ()))


def moved(planned: Planned, port: int, environ: Mapping[str, str]) -> LaunchPlan:
    """The plan of the same job on another port."""
    environ = {**environ, "MASTER_PORT": str(port)} if "MASTER_PORT" in environ else environ
    scratch = os.path.dirname(planned.plan.notice_file)
    return plan(planned.job, planned.cluster.replace(port=port), planned.program, environ, scratch)


def _launch(
    job: TrainingJob,
    cluster: Cluster,
    program: Program,
    environ: Mapping[str, str],
    scratch: str,
    kind: str,
    notice_file: str,
) -> Launch:
    arguments = to_argv(job.hyperparameters.user, job.settings.argv)
    variables, notes = script_environment(
        job, cluster, code_dir=program.folder, entry_point=program.name, arguments=arguments
    )
    if job.settings.bind != "none" and (not traits_of(kind).can_bind or job.settings.engine != "trainshed"):
        notes.append(
            f"trainshed_bind = {job.settings.bind} is for ranks that trainshed itself starts, and has no effect here"
        )
    return Launch(
        job=job,
        cluster=cluster,
        program=program,
        arguments=tuple(arguments),
        environment={
            **default_variables(job, cluster),
            **environ,
            **variables,
            # As a shell would have it; Python looks for itself.
            **({"PWD": program.folder} if program.kind in ("shell", "executable") else {}),
            **fixed_variables(job, cluster, program, environ),
            NOTICE_FILE: notice_file,
        },
        scratch=scratch,
        notes=tuple(notes),
    )


def _accelerated(launch: Launch, kind: str) -> Launch:
    """The launch, with the variables of the file that `trainshed_accelerate` names, or a note that there is one."""
    job, traits = launch.job, traits_of(kind)
    if not launch.cluster.participates or job.training_module:
        return launch
    if job.settings.accelerate:
        from .launchers import accelerated

        return accelerated.with_its_variables(launch, kind)
    return accelerate_files.with_note(launch) if "accelerate" in traits.takes or not traits.has_ranks else launch


def _compiled(launch: Launch, kind: str) -> LaunchPlan:
    """The plan of a job whose ranks compile their model, or are asked not to."""
    from .compiler.prepare import prepare  # on demand: most jobs have no compiler

    prepared = prepare(launch, kind)
    made = launcher_of(prepared.launcher).plan(prepared.launch)
    return made.replace(
        processes=tuple(spec.replace(argv=(*prepared.prefix, *spec.argv)) for spec in made.processes),
        compiler=prepared.shown,
        compile=prepared.plan,
        says=prepared.says,
    )


def _without_torch_xla(launch: Launch) -> Launch:
    """Accelerate trains on torch_xla wherever it is installed, unless this variable says no."""
    folders = (*launch.environment["PYTHONPATH"].split(os.pathsep), *sys.path)
    if not any(folder and os.path.isdir(f"{folder}/torch_xla") for folder in folders):
        return launch
    return launch.replace(environment={"USE_TORCH_XLA": "0", **launch.environment})
