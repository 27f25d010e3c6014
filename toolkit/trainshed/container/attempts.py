"""The fifth step: runs a planned job until it succeeds, is interrupted, or fails for the last time.

Each attempt starts all ranks of this host. `restarts` decides after a failure whether there is
another one, on several hosts `shared_restarts` with the others; torch's elastic agent restarts ranks
inside one attempt. Whatever else brings a job back (the runner, SageMaker, Slurm, Kubernetes) starts
`train` anew: docs/restarts.md.
"""

from __future__ import annotations

from trainshed.contract.outcome import clear_outcome, read_own_failure
from trainshed.contract.wire.metric_lines import signs_of
from trainshed.contract.wire.variables import IN_PLACE
from trainshed.machine.cgroup import oom_kills
from trainshed.machine.scratch import forget_attempt, memory_folder
from trainshed.machine.signals import Interrupted, signal, stop_raises

from .late import A_WHILE, Late
from .launchers import launcher_of
from .notices import Notices
from .report.finish import TrainingResult
from .supervisor.loop import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.base.voice import Voice
    from trainshed.contract.outcome import Failure
    from trainshed.machine.signals import Stops

    from .hangs.hang_watch import HangWatch
    from .intermediate import Uploads
    from .planning import Planned
    from .replacements import Replacements
    from .report.run_record import RunRecord
    from .restarts import Again, Restarts
    from .roster.roster import Roster
    from .rules_watch import RulesWatch
    from .shared_restarts import SharedRestarts
    from .slow_ranks import SlowRanks
    from .supervisor.launch_plan import LaunchPlan, Outcome, ProcessSpec
    from .supervisor.watcher import Process, Watcher
    from .warm_start.ranks import WarmRanks, WarmStart

# What only some jobs ask for, or jobs that live longer than a moment, is loaded when it is asked for: hence the imports in
# the functions.


class Attempts:
    """All attempts of one job on this host.

    Args:
        planned: the job and its plan; the plan's scratch folder must exist where it names one.
        roster: this host's part among the job's hosts.
        record: is kept up to date as the job goes on.
        stops: the process's stop signals while no rank runs; one that has come prevents the start of ranks.
    """

    def __init__(
        self,
        planned: Planned,
        roster: Roster,
        record: RunRecord,
        environ: Mapping[str, str],
        voice: Voice,
        stops: Stops,
    ) -> None:
        self._stops = stops
        self._planned = planned
        self._roster = roster
        self._record = record
        self._environ = environ
        self._voice = voice
        job, plan = planned.job, planned.plan
        settings = job.settings
        self._notices = Notices(
            plan.notice_file,
            environ,
            voice.say,
            watch=settings.notices != "off",
            exit_code=settings.interrupted_exit_code,
        )
        self._allowed = 0 if plan.agent_events else settings.max_restarts
        self._restarts = self._make_restarts(self._allowed)
        self._oom_kills = oom_kills()
        self._warm: WarmStart | None = None

    def run(self) -> TrainingResult:
        """Runs the plan, again after each failure that the job's restarts allow.

        Raises:
            StartError: a process could not be started.
            Interrupted: a stop signal came before the first attempt.
        """
        plan = self._planned.plan
        if plan.agent_events:
            from .launchers.torchrun import lost_hosts

            self._roster.on_lost = lambda host: self._note_lost(lost_hosts(plan.scratch), host)
        if self._allowed:
            from .restarts import counted

            plan = counted(plan, 0, self._allowed)
        self._restore_compile_cache()
        uploads = self._start_uploads()
        while True:
            result = self._attempt(plan, uploads)
            assert result.outcome is not None
            again = self._next(result)
            if again is None:
                break
            self._record.restarted(again.failure)
            plan = self._plan_of(again)
        if self._warm is not None:
            self._warm.close()
        self._notices.close()
        self._say_verdict()
        self._keep_compile_cache()
        if uploads:
            missing = self._finish_uploads(uploads, bool(result.outcome.stop_signal))
            if missing:  # no failure: the platform keeps no model of a failed job, which would lose more than this
                self._voice.say(
                    f"WARNING: {missing}; the lines above say why; the files are in output/intermediate of this container"
                )
        return _checked(plan, result)

    # --- between two attempts ---------------------------------------------------------------------

    def _make_restarts(self, allowed: int) -> Restarts | SharedRestarts | None:
        """What decides on them; None where there are none."""
        if not allowed:
            return None
        from . import ports

        checkpoints = (self._planned.job.paths.checkpoints, memory_folder(self._environ))
        say = self._voice.say
        if not self._roster.restarts:
            from .restarts import Restarts

            allowed = allowed if len(self._roster.names) == 1 else 0
            return Restarts(allowed, checkpoints, say, lambda: ports.free(self._planned.plan))
        from .shared_restarts import SharedRestarts

        return SharedRestarts(
            allowed,
            checkpoints,
            self._roster,
            self._planned.cluster.current_host,
            self._stops,
            say,
            lambda: ports.candidates(self._planned.plan),
            lambda: ports.free(self._planned.plan),
        )

    def _next(self, result: TrainingResult) -> Again | None:
        """The next attempt, None where this was the last one."""
        if self._restarts is None or (self._stops.number and not self._roster.restarts):
            return None
        from .restarts import Ended

        assert result.outcome is not None
        return self._restarts.after(Ended(result.outcome, result.failure, result.interruption))

    def _plan_of(self, again: Again) -> LaunchPlan:
        """The plan of another attempt; nothing of what the ranks have left speaks for the next ones."""
        paths = self._planned.job.paths
        if again.port and again.port != self._planned.plan.port:
            from . import planning

            made = planning.moved(self._planned, again.port, self._environ)
            self._planned = self._planned.replace(plan=made)
        plan = self._planned.plan
        if plan.scratch:
            forget_attempt(plan.scratch)
        if own := read_own_failure(paths):
            self._voice.say(f"the script gave its own reason: {own.splitlines()[0][:300]}")
        clear_outcome(paths)
        from .restarts import counted

        return counted(plan, again.done, self._allowed)

    # --- one attempt ------------------------------------------------------------------------------

    def _attempt(self, plan: LaunchPlan, uploads: Uploads | None) -> TrainingResult:
        """Starts the ranks once and says how they ended."""
        job, cluster = self._planned.job, self._planned.cluster
        watch_hangs = Late(
            lambda: self._hang_watch(plan), after=A_WHILE, signs=(b"imed out", b"timeout"), signals=(signal.SIGUSR1,)
        )
        if len(self._roster.names) > 1:  # its messages may come at any moment
            watch_hangs.now()
        slow = self._slow_ranks()
        warm = self._warm_ranks(plan)
        in_place = self._replacements(plan)
        try:
            outcome = run(
                plan.replace(processes=()) if warm else plan,
                say=self._voice.say,
                started=self._started,
                watchers=[
                    self._notices,
                    self._roster,
                    *warm,
                    *in_place,
                    watch_hangs,
                    self._metrics_watch(),
                    *([] if job.settings.system_metrics == "off" else [Late(self._system_watch, after=A_WHILE)]),
                    *([slow] if slow is not None else ()),
                    *self._rules(),
                    *launcher_of(plan.launcher).watchers(plan, self._roster, self._voice.say),
                ],
                spared=(uploads.pid,) if uploads else (),
                stops=self._stops,
            )
        except BaseException:
            if uploads:
                uploads.give_up()
            raise
        if plan.agent_events:
            self._record.restarted_by_agent(plan.agent_events)
        if slow is not None:
            self._record.held_up(slow.episodes())
        before = self._oom_kills
        self._oom_kills = oom_kills()
        hangs: HangWatch | None = watch_hangs.made  # type: ignore[assignment]
        if hangs is not None and hangs.failure is not None:
            return TrainingResult(outcome=outcome, failure=hangs.failure)
        interruption = self._notices.interruption(outcome, cluster.processes_per_host)
        if interruption is not None:
            return TrainingResult(outcome=outcome, interruption=interruption)
        failure = self._diagnose(outcome, self._oom_kills - before)
        if failure is not None and hangs is not None and hangs.late and failure.rank in hangs.gave_up:
            failure = failure.replace(hint="; ".join(filter(None, (hangs.late, failure.hint))))
        return TrainingResult(outcome=outcome, failure=failure)

    def _warm_ranks(self, plan: LaunchPlan) -> list[WarmRanks]:
        """What starts the ranks of this plan from an interpreter that stays; [] where they are started plainly at once."""
        if self._planned.job.settings.warm_start == "off":
            return []
        from .warm_start.ranks import WarmRanks, WarmStart, unfit

        if why := unfit(plan, again=self._allowed > 0):
            self._tell_started(0, len(plan.processes), why, 0.0)
            return []
        self._warm = self._warm or WarmStart()
        hang_seconds = self._planned.job.settings.hang_seconds
        return [WarmRanks(self._warm, plan.processes, not self._allowed, hang_seconds, self._tell_started)]

    def _replacements(self, plan: LaunchPlan) -> list[Replacements]:
        """What starts a single rank again; [] where only all of them can be."""
        if self._roster.restarts or not plan.processes or IN_PLACE not in plan.processes[0].env:
            return []
        from .replacements import Replacements

        return [Replacements(plan, self._next_life, self._replaced, self._start_again)]

    def _next_life(self, lost: Process) -> tuple[Again, LaunchPlan] | None:
        """The plan by which one rank is started again, None where the restarts allow none."""
        from .restarts import Restarts
        from .supervisor.launch_plan import Outcome

        assert isinstance(self._restarts, Restarts)
        failure = self._diagnose(Outcome((lost.result(),)), oom_kills() - self._oom_kills)
        again = self._restarts.in_place(failure, self._planned.plan.port) if failure is not None else None
        return None if again is None else (again, self._plan_of(again))

    def _replaced(self, again: Again, name: str) -> None:
        from .restarts import Restarts

        assert isinstance(self._restarts, Restarts)
        self._restarts.replaced(again, name)
        self._record.restarted(again.failure, name)
        self._oom_kills = oom_kills()

    def _start_again(self, spec: ProcessSpec) -> tuple[int, int, int]:
        """Starts one rank as all of them were."""
        if self._warm is not None:
            return self._warm.spawn_or_start(spec, lambda why: self._tell_started(0, 1, why, 0.0))
        from .supervisor.spawn import spawn

        return spawn(spec)

    def _tell_started(self, warm: int, plain: int, why: str, seconds: float) -> None:
        self._record.ranks_started(warm, plain, why, seconds)
        if warm:
            self._voice.say(
                f"warm start: {warm} rank(s) forked from one interpreter, {seconds:.1f} s after it was asked for"
            )
        if why:
            self._voice.say(f"warm start: {plain} rank(s) started plainly: {why}")

    def _hang_watch(self, plan: LaunchPlan) -> Watcher:
        from .hangs.hang_watch import HangWatch, stops_on_hang

        job = self._planned.job
        return HangWatch(
            self._planned.cluster.current_host,
            job.paths.output_data,
            self._planned.program.folder,
            self._voice.say,
            self._roster,
            seconds=job.settings.hang_seconds,
            stop=stops_on_hang(job, plan),
        )

    def _metrics_watch(self) -> Late:
        job = self._planned.job

        def make() -> Watcher:
            from .metrics_watch import MetricsWatch

            return MetricsWatch(job, self._voice.say)

        return Late(make, signs=(b"",) if job.metric_definitions else signs_of(job.settings.metrics))

    def _system_watch(self) -> Watcher:
        from .sampling.system_watch import SystemWatch, sampling_plan

        return SystemWatch(sampling_plan(self._planned.job, self._planned.cluster), self._voice.say)

    def _slow_ranks(self) -> SlowRanks | None:
        job, cluster = self._planned.job, self._planned.cluster
        if not job.measures_steps:
            return None
        from .slow_ranks import SlowRanks

        return SlowRanks(job.profiler_folder, cluster.current_host, gpus=cluster.hardware.gpus > 0, roster=self._roster)

    def _rules(self) -> list[RulesWatch]:
        job, folder = self._planned.job, self._planned.program.folder
        if not job.settings.rules:
            return []
        from trainshed.contract.wire.rules import wanted_rules

        rules = wanted_rules(job.settings.rules)
        host = self._planned.cluster.current_host
        if not rules:
            return []
        from trainshed.base.wings import has_wing

        from .rules_watch import RulesWatch

        if not has_wing("studio"):
            self._voice.say("warning: no rules watch this job: trainshed.studio is not installed")
            return []
        folders = {"output": job.paths.output, "profiler": job.profiler_folder, "code": folder}
        return [RulesWatch(rules, folders, host, self._notices, self._voice.say)]

    def _started(self) -> None:
        """All ranks of an attempt run."""
        self._record.running()
        self._notices.started()

    def _diagnose(self, outcome: Outcome, killed_for_memory: int) -> Failure | None:
        if not outcome.failed:
            return None
        # Loaded on demand: a table of regular expressions that a good run never needs.
        from .report.diagnose import diagnose

        job, cluster, program = self._planned.job, self._planned.cluster, self._planned.program
        return diagnose(outcome, job, cluster, program.folder, killed_for_memory, self._voice.secrets)

    def _note_lost(self, path: str, host: str) -> None:
        """Tells torch's elastic agent that a host is lost."""
        try:
            with open(path, "a") as file:
                file.write(f"{host}\n")
        except OSError as error:
            self._voice.say(f"cannot tell torch's agent that {host} is lost: {error.strerror}")

    # --- around all attempts ----------------------------------------------------------------------

    def _restore_compile_cache(self) -> None:
        plan = self._planned.plan.compile
        if plan is None:
            return
        from .compiler import cache, rank_reports

        rank_reports.clear(plan)
        cache.restore(plan, self._voice.say)

    def _say_verdict(self) -> None:
        """Where the time of the steps went, for a job that asked."""
        job = self._planned.job
        if not job.measures_steps:
            return
        from .report.steps_line import say_verdict

        say_verdict(job.profiler_folder, self._record, self._voice)

    def _keep_compile_cache(self) -> None:
        plan = self._planned.plan.compile
        if plan is None:
            return
        from .compiler import cache, rank_reports

        try:
            with stop_raises("while the compile cache was being kept"):
                cache.keep(plan, self._voice.say)
        except Interrupted as error:  # how the script ended here stands
            self._stops.note(error.number)  # for the other hosts
            self._voice.say(f"the compile cache was not kept: {error}")
        self._record.compiled(plan.backend, rank_reports.read(plan))

    def _start_uploads(self) -> Uploads | None:
        """The uploads of intermediate output to S3, None where the job does not ask for them."""
        if not self._planned.job.hyperparameters.get("sagemaker_s3_output"):
            return None
        from .intermediate import start

        return start(self._planned.job, self._environ, self._voice.say)

    def _finish_uploads(self, uploads: Uploads, stopped: bool) -> str:
        """What did not get to S3, "" if nothing is missing."""
        try:
            with stop_raises("while the intermediate output was being uploaded"):
                return uploads.finish(stopped)
        except Interrupted as error:  # as above
            self._stops.note(error.number)
            uploads.give_up()
            self._voice.say(f"the upload of the intermediate output was cancelled: {error}")
            return ""


def _checked(plan: LaunchPlan, result: TrainingResult) -> TrainingResult:
    """The result; where all ranks ended well, with what they have not done as its failure."""
    outcome = result.outcome
    well = outcome is not None and not (outcome.failed or outcome.stop_signal or outcome.stopped_by)
    if result.failure or result.interruption or not well:
        return result
    return result.replace(failure=launcher_of(plan.launcher).missed(plan))
