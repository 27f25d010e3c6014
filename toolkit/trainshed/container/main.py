"""`train`: reads a job, launches it, carries it, reports it. Six steps, each in a module of its own."""

from __future__ import annotations

import os
import sys

from trainshed.contract.errors import EXIT_SUCCESS, NoJobError, TrainshedError
from trainshed.contract.job import read_job
from trainshed.contract.outcome import clear_outcome, writable
from trainshed.contract.paths import Paths
from trainshed.contract.secrets import secret_values

from . import launchers
from .cgroup import oom_kills
from .cluster import resolve
from .console import say
from .interrupted import Interrupted, stop_ignored, stop_raises
from .notices import Notices
from .program import prepare
from .report.finish import finish
from .report.record import RunRecord
from .restarts import Restarts
from .scratch import Scratch
from .supervisor.loop import run
from .supervisor.plan import StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import Job
    from trainshed.contract.outcome import Failure

    from .notices import Interruption
    from .program import Program
    from .supervisor.plan import Outcome

USAGE = """\
usage: train [--dry-run] [--help] [--version]

Runs the training job that /opt/ml describes: reads input/config, sets the environment, launches the script under the
distribution the job asks for, passes signals on, and leaves model, output/data, output/success or output/failure.

  --dry-run   print what would be run (command lines, environment, hosts, signals) and exit
  --version   print the version and exit
  --help      print this and exit

SAGEMAKER_BASE_DIR moves /opt/ml elsewhere. Exit status: the script's own; 128+n if signal n killed it; 2 if the job
cannot be read; 69 if another host is missing; 70 for a defect of trainshed. `trainshed doctor` checks an image and a job.
"""


def main(argv: list[str] | None = None) -> int:
    """The `train` command; returns its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    known = {"--dry-run", "--help", "-h", "--version"}
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        from trainshed.contract.errors import did_you_mean

        near = did_you_mean(unknown[0], known)
        say(f"train does not take {unknown[0]!r}" + (f" ({near})" if near else "") + "; see `train --help`")
        return 2
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return EXIT_SUCCESS
    if "--version" in arguments:
        import trainshed

        print(f"trainshed {trainshed.__version__}")
        return EXIT_SUCCESS
    return train(os.environ, dry_run="--dry-run" in arguments)


def train(environ: os._Environ[str] | dict[str, str], dry_run: bool = False) -> int:
    """Runs one job to its end (or prints what it would run) and returns the exit status."""
    record = RunRecord()
    paths = Paths.from_environment(environ)
    secrets = secret_values(environ)
    host = environ.get("SM_CURRENT_HOST", "")
    outcome: Outcome | None = None
    failure: Failure | None = None
    interruption: Interruption | None = None
    try:
        with stop_raises("before the script was started"), Scratch(environ, paths.output) as scratch:
            job = read_job(environ)
            paths, host = job.paths, job.resources.current_host
            secrets = secret_values({**environ, **job.hyperparameters.user, **job.hyperparameters.reserved})
            record.job(job)
            if not dry_run:
                _make_folders(job)
            for warning in job.warnings:
                say(f"warning: {warning}", secrets)
            cluster = resolve(job, environ)
            record.cluster(cluster)
            program = prepare(job, environ, say, dry=dry_run)
            plan = launchers.plan(job, cluster, program, dict(environ), scratch.path)
            record.plan(program, plan)
            if dry_run:
                from .dryrun import describe

                print(describe(job, cluster, program, plan))
                return EXIT_SUCCESS
            for note in plan.notes:
                say(f"warning: {note}", secrets)
            _wait_for_hosts(job, cluster)
            if plan.scratch:
                scratch.make()
            killed_before = oom_kills()
            notices = Notices(
                plan.notice_file,
                environ,
                say,
                watch=job.settings.notices != "off",
                exit_code=job.settings.interrupted_exit_code,
            )

            def started() -> None:
                record.running()
                notices.started()

            budget = 0 if job.settings.engine == "torchrun" else job.settings.max_restarts
            restarts = Restarts(budget, paths.checkpoints, say)
            while True:
                outcome = run(plan, say=say, started=started, notices=notices)
                interruption = notices.interruption(outcome, cluster.processes_per_host)
                oom, killed_before = oom_kills() - killed_before, oom_kills()
                failure = None if interruption else _diagnose(outcome, job, cluster, program, oom, secrets)
                if failure is None or not restarts.again(outcome, failure):
                    break
                record.restarted(failure)
                plan = restarts.plan(plan)
            notices.close()
    except NoJobError as error:
        from .card import card

        print(card(), file=sys.stderr)
        failure = _explain(error, host, secrets)
        if dry_run or not os.path.isdir(paths.base):
            say(error.message)
            return failure.exit_code
    except Interrupted as error:
        failure = _interrupted(error, host)
    except BaseException as error:  # every exit path writes its outcome, ours included
        failure = _explain(error, host, secrets)
    if dry_run:
        say(failure.text() if failure else "")
        return failure.exit_code if failure else EXIT_SUCCESS
    with stop_ignored():
        return finish(paths, record, outcome, failure, interruption)


def _make_folders(job: Job) -> None:
    """The folders that the script may write to; an earlier run's outcome goes away.

    Raises:
        TrainshedError: the output folder cannot be written, so that nothing could be reported.
    """
    clear_outcome(job.paths)
    for folder in (job.paths.model, job.paths.output_data):
        if not writable(folder):
            raise TrainshedError(
                f"{folder} cannot be written by uid {os.getuid()}",
                hint="mount it writable, make its owner the container's user, or start the container with --user",
            )


def _wait_for_hosts(job: Job, cluster: Cluster) -> None:
    if len(cluster.hosts) < 2 or not cluster.participates or job.distribution.kind == "script":
        return
    from .cluster.hosts import wait_for_names

    wait_for_names(cluster.hosts, job.settings.host_timeout_seconds, say)


def _diagnose(
    outcome: Outcome, job: Job, cluster: Cluster, program: Program, oom: int, secrets: tuple[str, ...]
) -> Failure | None:
    if not outcome.failed:
        return None
    from .report.diagnose import diagnose  # a table of regular expressions that a good run never needs

    return diagnose(outcome, job, cluster, program.folder, oom, secrets)


def _interrupted(error: Interrupted, host: str) -> Failure:
    from trainshed.contract.errors import EXIT_SIGNAL_BASE
    from trainshed.contract.outcome import Failure

    return Failure(kind="Interrupted", summary=str(error), exit_code=EXIT_SIGNAL_BASE + error.number, host=host)


def _explain(error: BaseException, host: str, secrets: tuple[str, ...]) -> Failure:
    from .report.diagnose import failure_of_error, failure_of_start

    if isinstance(error, StartError):
        return failure_of_start(error, host, secrets)
    return failure_of_error(error, host, secrets)


if __name__ == "__main__":
    sys.exit(main())
