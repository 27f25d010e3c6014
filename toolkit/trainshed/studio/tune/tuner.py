"""The loop of a tuning job: proposes trials, runs them beside each other, stops what is not worth its end.

Every trial is a runner in the background, which goes on when the tuner is killed. The tuner writes
down what it is about to do before it does it, and asks locks and files what has been done: so a second tuner
finds each trial in one of these states.

    file, no run                proposed: it is started
    lock held                   its runner lives, or is just starting: it is watched
    run ended                   its objective is read
    Slurm has it, lock free     its runner was killed: another one follows it
    run not ended, lock free    its runner was killed: started again as the job's `retries` say, or failed
    run not whole, `paused`     it was stopped with the tuner, or the disk was full: it goes on from its checkpoints
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER
from trainshed.base.files import remove
from trainshed.base.units import duration
from trainshed.runner.job.references import secrets_of
from trainshed.runner.job.write import job_file
from trainshed.runner.state.job_json import job_of, masked
from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED, Say
from trainshed.studio.batches.held_runs import Standing, counts, gets_another_start, give_up, halt
from trainshed.studio.batches.loop import Loop

from . import early as rules
from .population import Member, forget_before, is_waiting, member
from .propose import propose
from .trial import Trial, best_of, elapsed, front_of, since_best
from .trial_runs import (
    Curves,
    begin,
    begin_again,
    begin_anew,
    ended,
    follow_again,
    job_with,
    look,
    put_aside,
)
from .tuning import ASHA, MEDIAN, OFF, POPULATION, TuningJob
from .tuning_folder import TuningFolder
from .warm import EarlierTrial

CURVE_SECONDS = 0.3  # between two looks at the curves of running trials


@dataclass(frozen=True)
class Over:
    """Why no further trial is started. at_once: whether those that run are stopped, too. failed: whether it went wrong."""

    reason: str
    at_once: bool = False
    failed: bool = False


@dataclass(frozen=True)
class TuningStatus:
    """How the tuning job stands, for whoever shows it. latest: (resource, value) of the trials that run, where known."""

    tuning: TuningJob
    trials: tuple[Trial, ...]
    latest: dict[int, tuple[float, float]]


class Tuner(Loop[int]):
    """One session of tuning. The folder must have been claimed.

    Args:
        retry_failed: trials that have failed are run again, with the values that they had.
        known: what earlier tuning jobs have found.
        say: told what happens, one line each. show: given what makes a view, often.
    """

    def __init__(
        self,
        tuning: TuningJob,
        folder: TuningFolder,
        environ: Mapping[str, str],
        known: tuple[EarlierTrial, ...],
        say: Say,
        show: Callable[[Callable[[], TuningStatus]], None],
        retry_failed: bool = False,
    ) -> None:
        super().__init__(folder, say, tuning.limits.max_parallel)
        self.tuning, self.folder, self.environ, self.known = tuning, folder, environ, known
        self.show = show
        self.curves = Curves(folder, tuning.objective, tuning.early)
        self.trials: dict[int, Trial] = {}
        self.seen: dict[int, int] = {}  # how many values of a running trial have been judged
        self.best = 0
        self.front: set[str] = set()
        self.end_reason: Over | None = None
        self.exhausted = False
        self.retry_failed = retry_failed
        self.again: list[int] = []  # failed trials that wait for another run
        self.looked = 0.0

    def turn(self) -> bool:
        """Proposes, starts and stops trials; whether all are over and there are no more."""
        over = self.over()
        self.advance(over)
        if not self.stop_signal and over is None:
            over = self.fill()
        self.start_tasks()
        self.keep_best()
        self.show(self.view)
        self.end_reason = over
        return over is not None and not self.active

    def running(self) -> list[int]:
        """The trials that are not over."""
        return [trial.number for trial in self.active]

    def lives(self, key: int) -> bool:
        """Whether the run of a trial still goes on, here or where it was submitted to."""
        standing = look(self.folder, key)
        return standing.runner or standing.adrift

    def pause(self, key: int) -> None:
        """Writes down that a trial goes on with the next tuner. Raises TrainshedError."""
        self.keep(replace(self.trials[key], paused=True))

    def stopping(self) -> str:
        """What is said when the first signal comes."""
        count = sum(1 for trial in self.active if look(self.folder, trial.number).runner)
        return f"stopping {count} trials, which have {duration(self.tuning.job.grace_seconds)} to end; once more kills them"

    @property
    def active(self) -> list[Trial]:
        """The trials that are not over."""
        return [trial for trial in self.trials.values() if not trial.over]

    def recover(self) -> None:
        """Takes up what earlier sessions have left."""
        for trial in self.folder.trials(self.tuning.space, self.say):
            self.trials[trial.number] = trial
        for trial in self.active:  # what was made again is among them
            self.keep(trial)
        if self.retry_failed:
            self.again = sorted(trial.number for trial in self.trials.values() if trial.state == FAILED)
            self.say(f"{len(self.again)} trials that have failed are run again")
        remove(f"{self.folder.path}/outcome.json")
        over, going = len(self.trials) - len(self.active), self.active
        if self.trials:
            self.say(f"{over} trials are over, {len(going)} go on" if going else f"{over} trials are over")
        used: set[int] = set()
        for trial in going:
            if look(self.folder, trial.number).runner:
                self.seen[trial.number] = len(self.curves.of(trial.number))
                self.say(f"trial {trial.number} runs: it is watched again")
            slot = trial.slot
            if slot in used or slot >= self.tuning.limits.max_parallel:
                slot = min(set(range(len(going) + 1)) - used)
            used.add(slot)
            if slot != trial.slot:
                self.keep(replace(trial, slot=slot))

    def keep(self, trial: Trial) -> None:
        """Writes a trial down. Raises TrainshedError."""
        self.folder.save(trial)
        self.trials[trial.number] = trial

    # --- which trials there are ---------------------------------------------------------------------------------------

    def over(self) -> Over | None:
        """Why no further trial is started, None while there may be more."""
        limits, objective = self.tuning.limits, self.tuning.objective
        trials = list(self.trials.values())
        best = best_of(trials, self.tuning.objectives)
        reached = best.value if best is not None else None
        if reached is not None and limits.target is not None and not objective.better(limits.target, reached):
            return Over(f"{objective.metric} has reached {limits.target:g}", at_once=True)
        now = time.time()
        if limits.max_runtime and elapsed(trials, now) >= limits.max_runtime:
            return Over(f"the time limit of {duration(limits.max_runtime)} is reached", at_once=True)
        if limits.max_billable and self.billable(now) >= limits.max_billable:
            return Over(f"the limit of {duration(limits.max_billable)} of training is reached", at_once=True)
        if limits.not_improving and since_best(trials, self.tuning.objectives) >= limits.not_improving:
            return Over(f"{limits.not_improving} trials in a row were not better than the best", at_once=True)
        failed = [trial for trial in trials if trial.state == FAILED and trial.number not in self.again]
        if len(failed) >= limits.max_failed and best is None:
            last = max(failed, key=lambda trial: trial.ended)
            reason = f"{len(failed)} trials have failed and none has succeeded; the last one: {last.reason}"
            return Over(reason, at_once=True, failed=True)
        if self.again:
            return None
        if limits.max_jobs and len(trials) >= limits.max_jobs:
            return Over(f"there have been {len(trials)} trials")
        if self.exhausted and self.tuning.strategy.kind == POPULATION:
            return Over("no trial of the last generation has an objective", failed=True)
        return Over("every combination has been tried") if self.exhausted else None

    def billable(self, now: float) -> float:
        """Seconds of all trials, times hosts: what they took, or have taken so far."""
        hosts = self.tuning.job.instances
        return sum(one.seconds if one.over else max(0.0, now - one.created) * hosts for one in self.trials.values())

    def fill(self) -> Over | None:
        """Proposes trials for free slots; why there are no more, if so."""
        limits = self.tuning.limits
        while len(self.active) < limits.max_parallel:
            if (over := self.over()) is not None:
                return over
            if self.again:
                self.run_again(self.again.pop(0))
                continue
            number = next(number for number in range(1, len(self.trials) + 2) if number not in self.trials)
            if self.tuning.strategy.kind == POPULATION and is_waiting(self.tuning, list(self.trials.values()), number):
                return None
            found = self.proposed(number)
            if found is None:
                self.exhausted = True
                continue
            self.shortage.refuse()
            self.keep(Trial(number, found.values, created=time.time(), slot=self.free_slot(), parent=found.parent))
        return None

    def free_slot(self) -> int:
        """A part of the machine that no trial has."""
        return min(set(range(self.tuning.limits.max_parallel)) - {trial.slot for trial in self.active})

    def run_again(self, number: int) -> None:
        """Has a trial that failed start from its beginning; its run is put aside."""
        failed = self.trials[number]
        self.shortage.refuse()
        self.say(f"trial {number} is run again; it had failed: {failed.reason or 'for no known reason'}")
        put_aside(self.folder, number)
        self.curves.drop(number)
        self.keep(Trial(number, failed.values, created=time.time(), slot=self.free_slot(), parent=failed.parent))

    def proposed(self, number: int) -> Member | None:
        """What a new trial is, None where there can be none."""
        trials = list(self.trials.values())
        if self.tuning.strategy.kind == POPULATION:
            forget_before(self.folder, self.tuning.strategy, number)
            return member(self.tuning, trials, number)
        values = propose(self.tuning, trials, number, self.known)
        return None if values is None else Member(values)

    # --- what is done with each ---------------------------------------------------------------------------------------

    def advance(self, over: Over | None) -> None:
        """Notes which trials have ended, and which are to be stopped."""
        judge = self.tuning.early.kind != OFF and time.monotonic() - self.looked >= CURVE_SECONDS
        for trial in self.active:
            if trial.number in self.tasks:
                continue
            standing = look(self.folder, trial.number)
            if standing.run.ended and not standing.runner:
                if trial.halt or not self.goes_on(trial, standing):
                    self.note_end(trial, standing)
            elif trial.halt and not standing.begun and not standing.runner:
                self.note(replace(trial, state=STOPPED, ended=time.time(), reason=trial.halt))
            elif over is not None and over.at_once and not trial.halt:
                self.keep(replace(trial, halt=over.reason))
            elif judge and standing.runner and not trial.halt and (why := self.judged(trial)):
                self.keep(replace(trial, halt=why))
        if judge:
            self.looked = time.monotonic()

    def goes_on(self, trial: Trial, standing: Standing) -> bool:
        """Whether a trial whose run has ended is started again: it was stopped with the tuner, or its runner was killed."""
        if trial.paused:
            return standing.run.said[0] != "Completed" or not self.curves.values(trial.number, self.tuning.objectives)[0]
        return standing.lost and gets_another_start(standing, trial.retries, self.tuning.job.retries)

    def start_tasks(self) -> None:
        """Begins what takes a while, each in a thread: starts, stops, the ends of what killed runners have left."""
        for trial in self.active:
            if trial.number not in self.tasks:
                self.act(trial, look(self.folder, trial.number))

    def act(self, trial: Trial, standing: Standing) -> None:
        """Does what is to be done with a trial now."""
        run, number = standing.run, trial.number
        if standing.adrift and not (trial.halt or self.stop_signal):
            self.say(f"trial {number}: its runner was killed; {run.submitted} goes on and is watched again")
            self.task(number, lambda: follow_again(trial, self.folder, self.environ, run))
        elif standing.runner or standing.adrift:
            if (trial.halt or self.stop_signal) and standing.can_be_stopped:
                self.stop(trial)
        elif self.stop_signal or trial.halt or (standing.begun and not self.goes_on(trial, standing)):
            if standing.lost and not run.ended and (trial.halt or not self.stop_signal):
                self.task(number, lambda: give_up(run, self.environ))
        elif not standing.begun:
            self.keep(fresh := replace(trial, created=time.time(), paused=False))
            origin = f", from the checkpoint of trial {trial.parent}" if trial.parent else ""
            self.say(f"trial {number}{self.of_all()} starts: {self.said(trial)}{origin}")
            self.task(number, lambda: begin(self.tuning, fresh, self.folder, self.environ))
        else:
            self.go_on(trial, standing)

    def stop(self, trial: Trial) -> None:
        """Asks a trial to end; one that is stopped with the tuner goes on with the next one."""
        if not trial.halt and not trial.paused:
            self.pause(trial.number)
        self.end_run(trial.number)

    def halt(self, key: int, *, kill: bool) -> None:
        """Asks the run of a trial to end and waits until it has. Raises TrainshedError."""
        halt(look(self.folder, key), self.environ, kill=kill)

    def go_on(self, trial: Trial, standing: Standing) -> None:
        """Takes a trial up again where its run ended."""
        run, number = standing.run, trial.number
        killed = standing.lost and not trial.paused
        said = ": its runner was killed: it is started again" if killed else " goes on where it ended"
        self.say(f"trial {number}{said}")
        after = replace(trial, paused=False, retries=trial.retries + counts(standing, paused=trial.paused))
        self.curves.drop(number)
        self.seen.pop(number, None)
        # Of one that has completed nothing is left to be measured from its last checkpoint on.
        again = begin_anew if run.said[0] == "Completed" else begin_again
        self.task(number, lambda: again(self.tuning, trial, self.folder, self.environ, run), lambda _: self.keep(after))

    def note_end(self, trial: Trial, standing: Standing) -> None:
        """A run is over: its objective counts."""
        found = ended(trial, standing.run, *self.curves.values(trial.number, self.tuning.objectives))
        if found.state == FAILED:
            self.shortage.refuse(trial.number)
        self.note(found)

    def note(self, trial: Trial) -> None:
        """Keeps a trial that is over, and says so."""
        objectives = self.tuning.objectives
        self.keep(trial)
        took = duration(max(0.0, trial.ended - trial.created))
        said = {COMPLETED: "completed", STOPPED: "stopped", FAILED: "failed"}[trial.state]
        told = zip(objectives, (trial.value, *trial.further), strict=False) if trial.value is not None else ()
        value = ", ".join(f"{one.metric} {value:.6g}" for one, value in told)
        value = f": {value}" if value else ""
        several = len(objectives) > 1
        best = ""
        if several and trial in front_of(self.trials.values(), objectives):
            best = ", on the front"
        elif not several and trial == best_of(self.trials.values(), objectives):
            best = ", the best so far"
        why = f" ({trial.reason})" if trial.reason else ""
        self.say(f"trial {trial.number} {said}{value} in {took}{best}{why}")

    def judged(self, trial: Trial) -> str:
        """Why the rule of early stopping ends a running trial; "" where it goes on."""
        early, objective, number = self.tuning.early, self.tuning.objective, trial.number
        curve = self.curves.of(number)
        seen = self.seen.get(number, 0)
        self.seen[number] = len(curve)
        if len(curve) <= seen:
            return ""
        if early.kind == MEDIAN:
            over = [one for one in self.trials.values() if one.over and one.state != FAILED]
            earlier = [self.curves.whole(one.number) for one in over]
            reasons = (rules.median_stops(point, earlier, objective) for point in curve[seen:])
            return next(filter(None, reasons), "")
        if early.kind != ASHA:
            return ""
        bracket = rules.bracket_of(number, early)
        beside = [one for one in self.trials if rules.bracket_of(one, early) == bracket]
        curves = {one: self.curves.whole(one) if self.trials[one].over else self.curves.of(one) for one in beside}
        for rung in rules.rungs(early, bracket):
            if rules.reached(curve, rung) is None:
                break
            if rules.reached(curve[:seen], rung) is None and (
                why := rules.asha_stops(number, rung, curves, early, objective)
            ):
                return why
        return ""

    # --- the best, the end --------------------------------------------------------------------------------------------

    def keep_best(self) -> None:
        """`best` leads to the best trial's run, and `best.yaml` makes it again."""
        self.keep_front()
        best = best_of(self.trials.values(), self.tuning.objectives)
        if best is None or best.number == self.best:
            return
        told = zip(self.tuning.objectives, (best.value, *best.further), strict=True)
        comment = f"Trial {best.number} of {self.tuning.name}: {', '.join(f'{one.metric} {value}' for one, value in told)}."
        job = job_with(self.tuning, best.values)
        # Secrets that were given as plain text are left out of it, and it says so.
        kept = job_of(json.loads(json.dumps(masked(job, secrets_of(job, {})))))
        self.folder.write("best.yaml", job_file(kept, comment))
        self.folder.link("best", f"trials/{best.number:04d}")
        self.best = best.number

    def keep_front(self) -> None:
        """With several objectives, `front` leads to the runs that no other one beats."""
        if not self.tuning.further:
            return
        front = {f"{trial.number:04d}" for trial in front_of(self.trials.values(), self.tuning.objectives)}
        if front != self.front:
            self.folder.keep_links("front", {name: f"../trials/{name}" for name in front})
            self.front = front

    def finish(self) -> int:
        """Writes how it ended; returns the exit status."""
        best = best_of(self.trials.values(), self.tuning.objectives)
        if self.stop_signal:
            waiting = len(self.active)
            reason = self.stopped + (f"; {waiting} trials wait to go on" if waiting else "")
            self.folder.end("Stopped", reason)
            self.say(f"{reason}: `trainshed tune --resume {self.folder.shown}` goes on")
            return self.stop_status
        over = self.end_reason
        reason = over.reason if over is not None else ""
        if best is None:
            if over is None or not over.failed:
                reason = f"{reason}; no trial has an objective{self.last_failure()}"
            self.folder.end("Failed", reason)
            self.say(reason)
            return EXIT_USER
        self.folder.end("Completed", reason)
        self.say(f"over: {reason}")
        return EXIT_SUCCESS

    def last_failure(self) -> str:
        """`; the last one: REASON`, "" where none has failed."""
        failed = [trial for trial in self.trials.values() if trial.state == FAILED and trial.reason]
        return f"; the last one: {max(failed, key=lambda trial: trial.ended).reason}" if failed else ""

    def view(self) -> TuningStatus:
        """How it stands now."""
        latest = {}
        for trial in self.active:
            if curve := self.curves.of(trial.number):
                latest[trial.number] = curve[-1]
        return TuningStatus(self.tuning, tuple(self.trials[number] for number in sorted(self.trials)), latest)

    def said(self, trial: Trial) -> str:
        """A trial's values in a line."""
        return " ".join(f"{name}={short(text)}" for name, text in trial.values.items())

    def of_all(self) -> str:
        """` of 30`, where that is known."""
        return f" of {self.tuning.limits.max_jobs}" if self.tuning.limits.max_jobs else ""


def short(text: str) -> str:
    """A value for a line: numbers with five digits that count."""
    try:
        return f"{float(text):.5g}" if "." in text or "e" in text.lower() else text
    except ValueError:
        return text
