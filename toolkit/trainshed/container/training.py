"""One training job in six steps: read, resolve, prepare, plan, run, finish.

The first four make one frozen value each and start nothing that trains; `--dry-run` prints what they
made. The fifth runs the ranks. The sixth writes the outcome, whichever step the job ended in.
"""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import EXIT_SIGNAL_BASE, EXIT_SUCCESS, NoJobError, TrainshedError, visible
from trainshed.base.voice import Voice
from trainshed.contract.outcome import Failure, clear_outcome, writable
from trainshed.contract.paths import Paths
from trainshed.contract.reading import read_job
from trainshed.contract.wire.secret_names import environment_secrets
from trainshed.machine import console
from trainshed.machine.scratch import Scratch, memory_folder
from trainshed.machine.signals import Interrupted, Stops, signal

from . import planning
from .attempts import Attempts
from .cluster import resolve
from .planning import Planned
from .program import prepare
from .report.finish import TrainingResult, finish
from .report.run_record import RunRecord
from .roster import agree, elastic, make_roster, tell_before_start
from .roster.roster import LeaderMoved
from .supervisor.launch_plan import StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

    from .program import Program
    from .roster.roster import Preparing, Roster
    from .supervisor.launch_plan import LaunchPlan

    Settle = Callable[[TrainingResult], TrainingResult]

_BEFORE = "before the script was started"


class HostTraining:
    """The job that /opt/ml describes, on this host; made for one call of `execute` or `show`.

    Args:
        environ: the variables that `train` was started with.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._voice = Voice(console.write, environment_secrets(environ))
        self._paths = Paths.from_environment(environ)
        self._host = environ.get("SM_CURRENT_HOST", "")
        self._record = RunRecord(self._voice, memory_folder(environ))
        self._stops = Stops()
        # Tells the other hosts of this one's end; returns how the whole job ended.
        self._settle: Settle = self._tell_unresolved

    def execute(self) -> int:
        """Runs the job to its end; returns the exit status of `train`."""
        signal.signal(signal.SIGUSR1, _no_stacks)
        with self._stops:  # from here on a stop changes how the job ends, or comes too late for that
            try:
                clear_outcome(self._paths)  # first of all: an earlier run must not speak for this one
                with Scratch(self._environ, self._paths.output) as scratch:
                    result = self._result(scratch)
            except NoJobError as error:
                _welcome()
                if not os.path.isdir(self._paths.base):  # no folder for an outcome
                    self._voice.say(error.message)
                    return error.exit_code
                result = TrainingResult(failure=self._explain(error))
            except BaseException as error:  # every exit path writes its outcome, ours included
                result = TrainingResult(failure=self._explain(error))
            return self.finish(result)

    def show(self) -> int:
        """Prints what `execute` would run, and writes nothing; returns the exit status."""
        try:
            with self._stops, Scratch(self._environ, self._paths.output) as scratch, self._stops.raising(_BEFORE):
                planned = self._planned_dry(scratch.path)
                from .dry_run import describe

                _print(describe(planned))
        except NoJobError as error:
            _welcome()
            self._voice.say(error.message)
            return error.exit_code
        except BaseException as error:
            failure = self._explain(error)
            self._voice.say(failure.text())
            return failure.exit_code
        return EXIT_SUCCESS

    # --- the six steps ----------------------------------------------------------------------------

    def _result(self, scratch: Scratch) -> TrainingResult:
        """The first five steps. The scratch folder goes when they are over, and nothing interrupts that."""
        with self._stops.raising(_BEFORE):
            job = self.read()
            _make_folders(job)
            self._warn(job)
            cluster = self.resolve(job)
            roster = make_roster(job, cluster, self._environ, self._voice.say)
            self._settle = self._tell_joining(roster, job)
            program = self.prepare(job, others=roster.preparing())
            self._check_copies(job)
            self._see_data(job)
            planned = Planned(job, cluster, program, self.plan(job, cluster, program, scratch.path))
            self._join(planned, roster, scratch)
        return self._run_under_leaders(planned, roster)

    def _planned_dry(self, scratch: str) -> Planned:
        """The first four steps, without a trace."""
        job = self.read()
        self._warn(job)
        cluster = self.resolve(job)
        program = self.prepare(job, dry=True)
        return Planned(job, cluster, program, self.plan(job, cluster, program, scratch))

    def _see_data(self, job: TrainingJob) -> None:
        if job.channels and job.settings.fingerprint != "off":
            from .data_seen import data_seen

            self._record.data_seen(data_seen(job, self._voice.say))

    def _check_copies(self, job: TrainingJob) -> None:
        """Raises TrainshedError: copies of checkpoints would be refused."""
        if job.settings.checkpoint_copy_to:
            from .copies_check import check_copies

            check_copies(job.settings.checkpoint_copy_to, self._environ)

    def _warn(self, job: TrainingJob) -> None:
        for warning in job.warnings:
            self._voice.say(f"warning: {warning}")

    def read(self) -> TrainingJob:
        """Step 1: the platform's files and variables, checked.

        Raises:
            NoJobError: nothing describes a job.
            JobError: it cannot be read; names every problem.
        """
        job = read_job(self._environ)
        self._paths = job.paths
        self._host = job.resources.current_host
        hyperparameters = {**job.hyperparameters.user, **job.hyperparameters.reserved}
        self._voice.hide(environment_secrets({**self._environ, **hyperparameters}))
        self._record.job(job)
        return job

    def resolve(self, job: TrainingJob) -> Cluster:
        """Step 2: the hosts of the job, this host's rank, its hardware.

        Raises:
            JobError: the scheduler's variables contradict each other.
        """
        cluster = resolve(job, self._environ)
        self._host = cluster.current_host
        self._record.cluster(cluster)
        self._settle = self._tell_waiting(job, cluster)
        return cluster

    def prepare(self, job: TrainingJob, *, dry: bool = False, others: Preparing | None = None) -> Program:
        """Step 3: the user's code in place, its requirements installed (not in a dry run).

        Raises:
            TrainshedError: the program is missing, or cannot be installed, or another host ended the job meanwhile.
        """
        return prepare(job, self._environ, self._voice.say, dry=dry, others=others)

    def plan(self, job: TrainingJob, cluster: Cluster, program: Program, scratch: str) -> LaunchPlan:
        """Step 4: the processes of this host.

        Raises:
            LaunchError: this distribution, or this program under it, cannot be started.
        """
        plan = planning.plan(job, cluster, program, self._environ, scratch)
        self._record.plan(program, plan)
        return plan

    def _join(self, planned: Planned, roster: Roster, scratch: Scratch) -> None:
        """Between the steps: joins the other hosts.

        Raises:
            ClusterError: other hosts are missing.
        """
        plan = planned.plan
        for note in plan.notes:
            self._voice.say(f"warning: {note}")
        for line in plan.says:
            self._voice.say(line)
        roster.join(planned.job.settings.host_timeout_seconds)
        self._settle = lambda result: self._left(roster, planned.job, result)
        if plan.scratch or planned.job.settings.checkpoint_memory:  # by the scratch the next `train` knows what is left
            scratch.make()

    def run(self, planned: Planned, roster: Roster) -> TrainingResult:
        """Step 5: runs the ranks, again after failures where the job asks for it.

        Raises:
            StartError: a process could not be started.
            Interrupted: a stop signal came before they were.
        """
        return Attempts(planned, roster, self._record, self._environ, self._voice, self._stops).run()

    def _run_under_leaders(self, planned: Planned, roster: Roster) -> TrainingResult:
        """Step 5, again each time when another host of an elastic job comes to lead it."""
        result = self.run(planned, roster)
        if not elastic(planned.job, planned.cluster):
            return result
        from . import launchers
        from .roster.succession import Succession
        from .supervisor.progress import newest_step, resumption

        assert isinstance(roster, Succession)
        while True:
            try:
                agreed = self._agreed(roster, planned.job, result)
            except LeaderMoved as moved:
                self._record.restarted(moved.lost)
                resuming = resumption(newest_step(planned.job.paths.checkpoints))
                self._voice.say(f"{roster.leader} leads the job now: starting the ranks again, {resuming}")
                plan = launchers.moved(planned.plan, roster.term, roster.address, roster.leads, len(roster.names))
                result = self.run(planned.replace(plan=plan), roster)
            else:
                self._settle = lambda _: agreed  # noqa: B023 (the loop is over)
                return agreed

    def finish(self, result: TrainingResult) -> int:
        """Step 6: agrees with the other hosts, writes the outcome, says it; returns the exit status."""
        return finish(self._paths, self._record, self._settle(result), self._voice)

    def _left(self, roster: Roster, job: TrainingJob, result: TrainingResult) -> TrainingResult:
        """The same for a host that cannot start its ranks again, whoever leads."""
        try:
            return self._agreed(roster, job, result)
        except LeaderMoved as moved:
            return result.replace(failure=result.failure or moved.lost)

    def _agreed(self, roster: Roster, job: TrainingJob, result: TrainingResult) -> TrainingResult:
        """The result of the whole job, from what all hosts report."""
        interruption = result.interruption
        reason = interruption.reason if interruption is not None else ""
        failure, stopped = agree(roster, result.outcome, result.failure, reason, self._host, self._stops)
        if failure is None and stopped and interruption is None:
            from .notices import Interruption

            code = job.settings.interrupted_exit_code
            interruption = Interruption(reason=stopped, source="another host", exit_code=code, elsewhere=True)
        return result.replace(failure=failure, interruption=interruption)

    # --- ends -------------------------------------------------------------------------------------

    def _tell_unresolved(self, result: TrainingResult) -> TrainingResult:
        """For a host that fails before it knows its place in the job: looks it up now, since the others wait for it."""
        if result.failure is None:
            return result
        try:
            job = read_job(self._environ)
            cluster = resolve(job, self._environ)
            self._host = cluster.current_host
            return self._tell_waiting(job, cluster)(result)
        except TrainshedError:  # the job cannot be read, here or anywhere
            return result

    def _tell_waiting(self, job: TrainingJob, cluster: Cluster) -> Settle:
        """For a host that fails before it joins the others, which wait for it."""

        def settle(result: TrainingResult) -> TrainingResult:
            if result.failure is None:
                return result
            return self._tell(make_roster(job, cluster, self._environ, self._voice.say), job, result, result.failure)

        return settle

    def _tell_joining(self, roster: Roster, job: TrainingJob) -> Settle:
        """For a host that fails before the job has started."""

        def settle(result: TrainingResult) -> TrainingResult:
            if result.failure is None:
                return result
            return self._tell(roster, job, result, result.failure)

        return settle

    def _tell(self, roster: Roster, job: TrainingJob, result: TrainingResult, failure: Failure) -> TrainingResult:
        """Tells the hosts that wait for this one; the failure of the whole job may be another one."""
        seconds = job.settings.host_timeout_seconds
        return result.replace(failure=tell_before_start(roster, failure, self._host, seconds, self._voice.say))

    def _explain(self, error: BaseException) -> Failure:
        """The failure that an exception stands for."""
        if isinstance(error, Interrupted):
            return Failure(
                kind="Interrupted",
                summary=str(error),
                exit_code=EXIT_SIGNAL_BASE + error.number,
                host=self._host,
            )
        from .report.diagnose import failure_of_error, failure_of_start

        known = getattr(error, "failure", None)  # of another host, which could not start
        if known is not None:
            return known  # type: ignore[no-any-return]
        if isinstance(error, StartError):
            return failure_of_start(error, self._host, self._voice.secrets)
        return failure_of_error(error, self._host, self._voice.secrets)


def _no_stacks(_number: int, _frame: object) -> None:
    """SIGUSR1 before and after the script runs; while it runs, the supervisor reports stacks.

    No secret is in these words: masking them could import, and a handler may interrupt any import.
    """
    console.write("no rank is running on this host now: there are no stacks to report")


def _welcome() -> None:
    from .welcome import card

    print(card(), file=sys.stderr)


def _print(text: str) -> None:
    """Prints to stdout, whatever its encoding, and also without a reader."""
    try:
        sys.stdout.buffer.write(visible(text).encode("utf-8", "backslashreplace") + b"\n")
        sys.stdout.flush()
    except OSError:
        pass


def _make_folders(job: TrainingJob) -> None:
    """Makes the folders that the script may write to.

    Raises:
        TrainshedError: one of them cannot be written, so that nothing could be reported.
    """
    for folder in (job.paths.model, job.paths.output_data):
        if not writable(folder):
            raise TrainshedError(
                f"{folder} cannot be written by uid {os.getuid()}",
                hint="mount it writable, make its owner the container's user, or start the container with --user",
            )
