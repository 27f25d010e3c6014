"""Carrying a planned job: runs its ranks to their end, through notices of interruption, hangs and restarts."""

from __future__ import annotations

from trainshed.base.record import Record
from trainshed.machine.cgroup import oom_kills
from trainshed.machine.signals import Interrupted, stop_raises

from . import launchers
from .console import say
from .hangs.hang_watch import HangWatch, stops_on_hang
from .launchers.torchrun import lost_hosts
from .notices import Notices
from .restarts import Restarts
from .supervisor.loop import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import Job
    from trainshed.contract.outcome import Failure

    from .intermediate import Uploads
    from .notices import Interruption
    from .program import Program
    from .report.run_record import RunRecord
    from .roster.roster import Roster
    from .supervisor.launch_plan import LaunchPlan, Outcome


class Carried(Record):
    """How the last attempt ended: a failure, an interruption, or neither (success)."""

    outcome: Outcome
    failure: Failure | None
    interruption: Interruption | None


def carry(
    job: Job,
    cluster: Cluster,
    program: Program,
    plan: LaunchPlan,
    roster: Roster,
    record: RunRecord,
    environ: Mapping[str, str],
    secrets: tuple[str, ...],
) -> Carried:
    """Runs the plan, again after each failure that the job's restarts allow.

    Raises:
        StartError: a process could not be started.
    """
    settings = job.settings
    notices = Notices(
        plan.notice_file, environ, say, watch=settings.notices != "off", exit_code=settings.interrupted_exit_code
    )

    def started() -> None:
        record.running()
        notices.started()

    # Ranks on several hosts must agree on a restart: that is torch's elastic agent's part.
    ours = settings.engine != "torchrun" and len(roster.names) == 1
    restarts = Restarts(settings.max_restarts if ours else 0, job.paths.checkpoints, say)
    if plan.agent_events:
        roster.on_lost = lambda host: _note_lost(lost_hosts(plan.scratch), host)
    if plan.compile is not None:
        from .compiler import cache, rank_reports

        rank_reports.clear(plan.compile)
        cache.restore(plan.compile, say)
    killed_before = oom_kills()
    uploads = _uploads(job, environ)
    while True:
        hangs = HangWatch(
            cluster.current_host,
            job.paths.output_data,
            program.folder,
            say,
            roster,
            seconds=settings.hang_seconds,
            stop=stops_on_hang(job, plan),
        )
        try:
            outcome = run(
                plan,
                say=say,
                started=started,
                watchers=[notices, roster, hangs, *launchers.watchers(plan, roster, say)],
                spared=(uploads.pid,) if uploads else (),
            )
        except BaseException:
            if uploads:
                uploads.give_up()
            raise
        if plan.agent_events:
            record.restarted_by_agent(plan.agent_events)
        interruption = None if hangs.failure else notices.interruption(outcome, cluster.processes_per_host)
        killed = oom_kills()
        failure = hangs.failure
        if failure is None and interruption is None:
            failure = _diagnose(outcome, job, cluster, program, killed - killed_before, secrets)
        killed_before = killed
        if failure is None or not restarts.again(outcome, failure):
            break
        record.restarted(failure)
        plan = restarts.plan(plan)
    notices.close()
    if plan.compile is not None:
        try:
            with stop_raises("while the compile cache was being kept"):
                cache.keep(plan.compile, say)
        except Interrupted as error:  # how the script ended stands
            say(f"the compile cache is not kept: {error}")
        record.compiled(plan.compile.backend, rank_reports.read(plan.compile))
    if uploads:
        _finish(uploads, stopped=bool(outcome.stop_signal))
    return Carried(outcome=outcome, failure=failure, interruption=interruption)


def _uploads(job: Job, environ: Mapping[str, str]) -> Uploads | None:
    """What brings intermediate output to S3, where the job asks for that."""
    if not job.hyperparameters.get("sagemaker_s3_output"):
        return None
    from .intermediate import start

    return start(job, environ, say)


def _finish(uploads: Uploads, stopped: bool) -> None:
    try:
        with stop_raises("while the intermediate output was being uploaded"):
            uploads.finish(stopped)
    except Interrupted as error:  # how the script ended stands
        uploads.give_up()
        say(f"the upload of the intermediate output is cut off: {error}")


def _note_lost(path: str, host: str) -> None:
    """Tells torch's elastic agent that a host is lost."""
    try:
        with open(path, "a") as file:
            file.write(f"{host}\n")
    except OSError as error:
        say(f"the agent cannot be told that {host} is lost: {error.strerror}")


def _diagnose(
    outcome: Outcome, job: Job, cluster: Cluster, program: Program, oom: int, secrets: tuple[str, ...]
) -> Failure | None:
    if not outcome.failed:
        return None
    from .report.diagnose import diagnose  # a table of regular expressions that a good run never needs

    return diagnose(outcome, job, cluster, program.folder, oom, secrets)
