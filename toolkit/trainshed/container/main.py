"""`train`: reads a job, launches it, carries it, reports it. Six steps, each in a module of its own."""

from __future__ import annotations

import os
import signal
import sys

from trainshed.base.errors import EXIT_JOB, EXIT_SUCCESS, NoJobError, TrainshedError
from trainshed.contract.outcome import clear_outcome, writable
from trainshed.contract.paths import Paths
from trainshed.contract.reading import read_job
from trainshed.contract.wire.secret_names import environment_secrets
from trainshed.machine.signals import Interrupted, stop_ignored, stop_raises

from . import launchers
from .attempts import carry
from .cluster import resolve
from .console import say
from .program import prepare
from .report.finish import finish
from .report.run_record import RunRecord
from .roster import agree, fail_before_start, join_roster
from .scratch import Scratch
from .supervisor.launch_plan import StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import Job
    from trainshed.contract.outcome import Failure

    from .attempts import Carried
    from .roster.roster import Roster

USAGE = """\
usage: train [--dry-run] [--help] [--version]

Runs the training job that /opt/ml describes: reads input/config, sets the environment, launches the script under the
distribution the job asks for, passes signals on, and leaves model, output/data, output/success or output/failure.

SIGUSR1 has it report where every rank is (output/data/hang-<host>-<n>.txt) and go on.

  --dry-run   print what would be run (command lines, environment, hosts, signals) and exit
  --version   print the version and exit
  --help      print this and exit

SAGEMAKER_BASE_DIR moves /opt/ml elsewhere. `trainshed doctor` checks an image and a job.

Exit status: the script's own; 128+n if signal n killed it; 1 if the program cannot be found, installed or started; 2 if
the job cannot be read; 69 if another host is missing; 70 for a defect of trainshed; 124 if the job hung; 126 if the
program cannot be executed; 127 if it does not exist. An interrupted job ends with trainshed_interrupted_exit_code
(75 under Slurm and Kubernetes).
"""


def main(argv: list[str] | None = None) -> int:
    """The `train` command; returns its exit status."""
    _open_standard_streams()
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["train"]:  # the platform's argument, in an image whose ENTRYPOINT is `train`
        arguments = arguments[1:]
    known = {"--dry-run", "--help", "-h", "--version"}
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        from trainshed.base.errors import did_you_mean

        near = did_you_mean(unknown[0], known)
        say(f"train does not take {unknown[0]!r}" + (f" ({near})" if near else "") + "; see `train --help`")
        return EXIT_JOB
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return EXIT_SUCCESS
    if "--version" in arguments:
        import trainshed

        print(f"trainshed {trainshed.__version__}")
        return EXIT_SUCCESS
    return train(os.environ, dry_run="--dry-run" in arguments)


def _print(text: str) -> None:
    """Prints to stdout, whatever its encoding, and whether or not anybody still reads."""
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
        sys.stdout.flush()
    except OSError:
        pass


def _open_standard_streams() -> None:
    """Descriptors 0 to 2 that we were started without lead to /dev/null; else our own pipes would take their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is `fd`


def command() -> None:
    """The `train` console script: ends without Python's own clean-up, which takes longer than all of our reporting."""
    code = main()
    try:
        print(end="", flush=True)
    except OSError:  # nobody reads any more
        pass
    os._exit(code)


def train(environ: os._Environ[str] | dict[str, str], dry_run: bool = False) -> int:
    """Runs one job to its end (or prints what it would run) and returns the exit status."""
    record = RunRecord()
    paths = Paths.from_environment(environ)
    secrets = environment_secrets(environ)
    host = environ.get("SM_CURRENT_HOST", "")
    carried: Carried | None = None
    failure: Failure | None = None
    roster: Roster | None = None
    joining: tuple[Job, Cluster] | None = None  # set while other hosts may be waiting for this one
    try:
        if not dry_run:
            signal.signal(signal.SIGUSR1, _nothing_runs)
            clear_outcome(paths)  # before anything can fail: an earlier run must not speak for this one
        with stop_raises("before the script was started"), Scratch(environ, paths.output) as scratch:
            job = read_job(environ)
            paths, host = job.paths, job.resources.current_host
            secrets = environment_secrets({**environ, **job.hyperparameters.user, **job.hyperparameters.reserved})
            record.job(job)
            if not dry_run:
                _make_folders(job)
            for warning in job.warnings:
                say(f"warning: {warning}", secrets)
            cluster = resolve(job, environ)
            host = cluster.current_host
            record.cluster(cluster)
            joining = (job, cluster)
            program = prepare(job, environ, say, dry=dry_run)
            plan = launchers.plan(job, cluster, program, dict(environ), scratch.path)
            record.plan(program, plan)
            if dry_run:
                from .dry_run import describe

                _print(describe(job, cluster, program, plan))
                return EXIT_SUCCESS
            for note in plan.notes:
                say(f"warning: {note}", secrets)
            for line in plan.says:
                say(line, secrets)
            joining = None
            roster = join_roster(job, cluster, environ, say)
            if plan.scratch:
                scratch.make()
            carried = carry(job, cluster, program, plan, roster, record, environ, secrets)
    except NoJobError as error:
        from .welcome import card

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
    outcome = carried.outcome if carried else None
    if carried and failure is None:
        failure = carried.failure
    with stop_ignored():
        if roster is not None:
            failure = agree(roster, outcome, failure, host)
        elif joining is not None and failure is not None:
            fail_before_start(*joining, environ, say, failure)
        return finish(paths, record, outcome, failure, carried.interruption if carried else None)


def _nothing_runs(number: int, frame: object) -> None:
    """SIGUSR1 before and after the script runs; while it does, the supervisor takes it and reports."""
    say("no rank is running on this host now: there are no stacks to report")


def _make_folders(job: Job) -> None:
    """The folders that the script may write to.

    Raises:
        TrainshedError: the output folder cannot be written, so that nothing could be reported.
    """
    for folder in (job.paths.model, job.paths.output_data):
        if not writable(folder):
            raise TrainshedError(
                f"{folder} cannot be written by uid {os.getuid()}",
                hint="mount it writable, make its owner the container's user, or start the container with --user",
            )


def _interrupted(error: Interrupted, host: str) -> Failure:
    from trainshed.base.errors import EXIT_SIGNAL_BASE
    from trainshed.contract.outcome import Failure

    return Failure(kind="Interrupted", summary=str(error), exit_code=EXIT_SIGNAL_BASE + error.number, host=host)


def _explain(error: BaseException, host: str, secrets: tuple[str, ...]) -> Failure:
    from .report.diagnose import failure_of_error, failure_of_start

    known = getattr(error, "failure", None)  # of another host, which could not start
    if known is not None:
        return known  # type: ignore[no-any-return]
    if isinstance(error, StartError):
        return failure_of_start(error, host, secrets)
    return failure_of_error(error, host, secrets)


if __name__ == "__main__":
    command()
