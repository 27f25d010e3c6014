"""The loop of a pipeline: starts what can start, watches what runs, reuses what was done.

Every step that runs has a runner in the background, which goes on when the conductor is killed. The conductor writes down
what it is about to do before it does it; whoever is started after it finds each run by its lock (batches/held_runs.py).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER, TrainshedError
from trainshed.base.units import duration
from trainshed.contract.model_reference import reference_of
from trainshed.runner.control.model_folder import model_folder
from trainshed.runner.state.stored import load
from trainshed.studio.batches.folder import COMPLETED, FAILED, IN_PROGRESS, STOPPED, Say
from trainshed.studio.batches.held_runs import Standing, counts, gets_another_start, give_up, halt, lives, look_at
from trainshed.studio.batches.loop import Loop
from trainshed.studio.models.contents import files_in
from trainshed.studio.models.model_of_run import facts_of, metrics_of, require_whole
from trainshed.studio.models.storage import storage_at
from trainshed.studio.models.store import ModelStore, NoModelError
from trainshed.studio.tune.sessions import end as end_tuning
from trainshed.studio.tune.tuning_folder import TuningFolder

from . import tuning_step
from .inputs import Codes
from .step_runs import Prepared, Values, begin, begin_again, outcome, prepare, said_of, wrong_with
from .steps_folder import SKIPPED, StepsFolder, StepState
from .steps_plan import CONDITION, REGISTER, TUNE, WORK, PipelineDefinition, Registration, Step

TUNER_STARTS = 5  # of another tuner after one that was killed


class Conductor(Loop[str]):
    """One command that runs a pipeline. The folder must have been claimed.

    Args:
        forced: steps that run even if they were done. since: not those that were done after this moment.
        session: when the command began.
    """

    def __init__(
        self,
        pipeline: PipelineDefinition,
        folder: StepsFolder,
        environ: Mapping[str, str],
        say: Say,
        *,
        forced: set[str],
        since: float,
        session: float,
    ) -> None:
        super().__init__(folder, say, pipeline.max_parallel)
        self.pipeline, self.folder, self.environ = pipeline, folder, environ
        self.forced, self.since, self.session = forced, since, session
        found = {step.name: folder.state(step.name) for step in pipeline.steps}
        self.states = {name: state for name, state in found.items() if state is not None}
        self.over: dict[str, str] = {}  # how each step ended that this command is done with
        self.jobs: dict[str, Prepared] = {}  # of steps that run
        self.values = Values(pipeline, folder, self.states)
        self.codes = Codes(folder, pipeline.path, environ, say)

    def turn(self) -> bool:
        """Advances each step; whether all are over."""
        for step in self.pipeline.steps:
            if step.name not in self.over and step.name not in self.tasks:
                self.advance(step)
        return len(self.over) == len(self.pipeline.steps)

    def running(self) -> list[str]:
        """The steps with runs that are not over."""
        return [name for name in self.jobs if name not in self.over]

    def pause(self, key: str) -> None:
        """Writes down that a step goes on with the next command. Raises TrainshedError."""
        self.keep(replace(self.states[key], paused=True))

    def stopping(self) -> str:
        """What is said when the first signal comes."""
        return "stopping what runs, with its grace; once more kills it"

    def task_failed(self, key: str, error: TrainshedError) -> None:
        """A step has failed whose task has, unless the disk was full."""
        self.shortage.refuse(key)
        self.end(key, FAILED, said_of(error))

    def look(self, name: str) -> Standing:
        """How the run of a step stands."""
        return look_at(self.folder.run(name, self.states[name].number))

    def lives(self, key: str) -> bool:
        """Whether the runner or the tuner of a step lives, or is just starting."""
        return lives(self.folder.run(key, self.states[key].number))

    def keep(self, state: StepState) -> None:
        """Writes a step down. Raises TrainshedError."""
        state = replace(state, session=self.session)
        self.folder.save(state)
        self.states[state.name] = state

    # --- one step -----------------------------------------------------------------------------------------------------

    def advance(self, step: Step) -> None:
        """Does what is next for a step."""
        if step.name in self.jobs:
            self.watch(step)
            return
        if self.stop_signal:
            return
        if any(name not in self.over for name in step.needs):
            return
        failed = [name for name in step.needs if self.over[name] in (FAILED, STOPPED, NOT_RUN)]
        if failed:
            self.over[step.name] = NOT_RUN
            self.say(f"{step.name} is not run: {failed[0]} has not completed")
            return
        skipped = [name for name in step.needs if self.over[name] == SKIPPED]
        if skipped:
            self.end(step.name, SKIPPED, f"{skipped[0]} was skipped")
        elif step.when and self.states[step.when].value == step.unless:
            self.end(step.name, SKIPPED, f"{step.when} is {'true' if step.unless else 'false'}")
        elif step.kind == CONDITION:
            self.judge(step)
        elif step.kind == REGISTER:
            self.register(step)
        elif len(self.running()) + self.preparing() < self.pipeline.max_parallel:
            self.task(
                step.name,
                lambda: self.prepared(step),
                lambda made: self.decide(step, made),  # type: ignore[arg-type]
            )

    def prepared(self, step: Step) -> Prepared:
        """What a step is going to run. Raises TrainshedError, JobError."""
        how = tuning_step.prepare if step.kind == TUNE else prepare
        return how(self.pipeline, step, self.values, self.codes, self.environ)

    def preparing(self) -> int:
        """How many jobs are being prepared."""
        return sum(self.pipeline.step(name).kind in WORK and name not in self.jobs for name in self.tasks)

    def is_forced(self, state: StepState) -> bool:
        """Whether a step has to run again though nothing has changed."""
        return state.name in self.forced and state.began < self.since

    def decide(self, step: Step, made: Prepared) -> None:
        """Reuses, adopts or starts the run of a step."""
        state = self.states.get(step.name)
        if made.why:
            self.say(f"{step.name} will run again next time: {made.why}")
        if state is not None and state.state == IN_PROGRESS and state.number:
            if made.key and state.key == made.key:
                self.jobs[step.name] = made
                if self.lives(step.name):
                    self.say(f"{step.name} runs: it is watched again")
                    self.keep(state)
                return
            if self.lives(step.name):
                self.say(f"{step.name} still runs, and its inputs have changed: it is stopped")
                self.keep(replace(state, key=""))  # whoever comes after a kill knows that it is not wanted any more
                self.task(step.name, lambda: self.halt(step.name, kill=False), lambda _: self.start(step, made))
                return
        same = state is not None and state.state == COMPLETED and made.key and state.key == made.key
        if state is not None and same and not self.is_forced(state):
            kept = state
            self.task(step.name, lambda: self.unusable(step, kept), lambda why: self.reuse(step, made, str(why)))
            return
        self.start(step, made)

    def unusable(self, step: Step, state: StepState) -> str:
        """Why what a step has made cannot be used again, "" where it can. Raises TrainshedError."""
        if step.kind == TUNE and (why := tuning_step.wrong_with(self.folder.run(step.name, state.number))):
            return why
        return wrong_with(load(self.values.run_of(step.name)))

    def reuse(self, step: Step, made: Prepared, why: str) -> None:
        """Takes a step as done, unless something is wrong with what it has made."""
        if why:
            self.say(f"{step.name} runs again: {why}")
            self.start(step, made)
            return
        self.keep(replace(self.states[step.name], cached=True))
        self.over[step.name] = COMPLETED
        self.say(f"{step.name} is done already: nothing that it depends on has changed")

    def start(self, step: Step, made: Prepared) -> None:
        """Starts a run of a step."""
        if self.stop_signal:
            return
        self.shortage.refuse()
        before = self.states.get(step.name)
        number = before.number + 1 if before else 1
        while os.path.lexists(self.folder.run(step.name, number)):
            number += 1
        state = StepState(step.name, made.key, number, began=time.time())
        self.keep(state)
        self.jobs[step.name] = made
        self.say(f"{step.name} starts, in {self.folder.shown}/runs/{step.name}-{number}")
        self.task(step.name, lambda: self.begin(step, state, made))

    def begin(self, step: Step, state: StepState, made: Prepared) -> None:
        """Starts the runner or the tuner of a step. Raises TrainshedError, JobError."""
        if step.kind == TUNE:
            tuning_step.begin(self.pipeline, state, made, self.folder, self.environ)
        else:
            begin(self.pipeline, state, made.job, self.folder, self.environ)

    def watch(self, step: Step) -> None:
        """Looks at a step that runs."""
        if step.kind == TUNE:
            self.watch_tuning(step)
            return
        name, state, standing = step.name, self.states[step.name], self.look(step.name)
        run = standing.run
        if standing.runner:
            if self.stop_signal and standing.can_be_stopped:
                self.stop(state)
            return
        if run.ended and not standing.lost and (run.said[0] == COMPLETED or not state.paused):
            self.note_end(name, *outcome(run))
        elif self.stop_signal:
            return
        elif not standing.begun:
            made = self.jobs[name]
            self.task(step.name, lambda: self.begin(step, state, made))
        elif state.paused or gets_another_start(standing, state.starts, self.jobs[name].job.retries):
            charged = counts(standing, paused=state.paused)
            after = replace(state, paused=False, starts=state.starts + charged)
            self.say(f"{name}: its runner was killed: it is started again" if charged else f"{name} goes on where it ended")
            made = self.jobs[name]
            work = lambda: begin_again(self.pipeline, state, made.job, self.folder, self.environ, run)  # noqa: E731
            self.task(step.name, work, lambda _: self.keep(after))
        elif not run.ended:
            self.task(step.name, lambda: give_up(run, self.environ))
        else:
            self.end(name, FAILED, "its runner was killed")

    def watch_tuning(self, step: Step) -> None:
        """Looks at a step that tunes: a tuner that was killed is followed by another one, which finds its trials."""
        name, state = step.name, self.states[step.name]
        path = self.folder.run(name, state.number)
        if self.lives(name):
            if self.stop_signal and TuningFolder(path).worker > 0:
                self.stop(state)
            return
        found = tuning_step.outcome(path)
        if found is not None and (found[0] == COMPLETED or not state.paused):
            self.note_end(name, *found)
        elif self.stop_signal:
            return
        elif state.paused or not os.path.isdir(path) or state.starts < TUNER_STARTS:
            charged = os.path.isdir(path) and not state.paused
            after = replace(state, paused=False, starts=state.starts + charged)
            if os.path.isdir(path):
                self.say(
                    f"{name}: its tuner was killed: another one goes on" if charged else f"{name} goes on where it ended"
                )
            made = self.jobs[name]
            self.task(step.name, lambda: self.begin(step, state, made), lambda _: self.keep(after))
        else:
            self.end(name, FAILED, f"its tuner was killed {state.starts + 1} times; it has said: {path}/tuner.log")

    def stop(self, state: StepState) -> None:
        """Asks a step to end, which goes on with the next command."""
        if not state.paused:
            self.pause(state.name)
        self.end_run(state.name)

    def halt(self, key: str, *, kill: bool) -> None:
        """Asks a run or a tuning job to end and waits until it has. Raises TrainshedError."""
        if self.pipeline.step(key).kind == TUNE:
            tuning = TuningFolder(self.folder.run(key, self.states[key].number))
            end_tuning(tuning, self.environ, lambda _: None, kill=kill)
        else:
            halt(self.look(key), self.environ, kill=kill)

    def note_end(self, name: str, told: str, reason: str) -> None:
        """A run is over: it counts, unless it has failed on a full disk."""
        if told == FAILED:
            self.shortage.refuse(name)
        self.end(name, told, reason)

    def judge(self, step: Step) -> None:
        """Works out a condition."""
        assert step.expression is not None
        try:
            value = step.expression.holds(self.values.value)
        except (TrainshedError, ValueError) as error:
            self.end(step.name, FAILED, said_of(error) if isinstance(error, TrainshedError) else str(error))
            return
        now = time.time()
        self.keep(StepState(step.name, state=COMPLETED, began=now, ended=now, value=value))
        self.over[step.name] = COMPLETED
        self.say(f"{step.name} is {'true' if value else 'false'}: {step.expression.text}")

    def register(self, step: Step) -> None:
        """Puts a model into the store."""
        asked = step.registration
        assert asked is not None
        began, before = time.time(), self.states.get(step.name)
        names = (asked.source, *asked.metrics)
        runs = [load(self.values.run_of(name)).id for name in names]
        key = hashlib.sha256(repr((asked, runs)).encode("utf-8", "surrogatepass")).hexdigest()
        done = before is not None and (before.state, before.key) == (COMPLETED, key) and not self.is_forced(before)

        def over(version: object) -> None:
            self.over[step.name] = COMPLETED
            if done and before is not None and version == before.version:
                self.keep(replace(before, cached=True))
                self.say(f"{step.name} is done already: {version}")
                return
            self.keep(StepState(step.name, key, state=COMPLETED, began=began, ended=time.time(), version=str(version)))
            stages = f", {' and '.join(asked.stages)}" if asked.stages else ""
            self.say(f"{step.name}: {version}{stages}")

        known = before.version if done and before is not None else ""
        self.task(step.name, lambda: self.registered(asked, known), over)

    def registered(self, asked: Registration, known: str) -> str:
        """Adds the model of a step to the store, and moves the stages; the version, as text. Raises TrainshedError.

        Args:
            known: a version that was added so before: while it is there nothing is changed, its stages neither.
        """
        store = ModelStore(storage_at("", self.environ))
        if known:
            try:
                return str(store.find(reference_of(known)))
            except NoModelError:
                pass
        run = load(self.values.run_of(asked.source))
        require_whole(run)
        facts = facts_of(run)
        metrics = dict(facts.metrics)
        for name in asked.metrics:
            metrics |= metrics_of(load(self.values.run_of(name)))
        facts = replace(facts, metrics=metrics, licence=asked.licence, note=asked.note)
        with model_folder(run) as folder:
            version = store.add(asked.model, files_in(folder), facts).version
        for stage in asked.stages:
            store.set_stage(version, stage)
        return str(version)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, name: str, told: str, reason: str) -> None:
        """Notes that a step is over, and says so."""
        now = time.time()
        before = self.states.get(name)
        if before is not None and before.state == IN_PROGRESS and before.number and name not in self.jobs:
            # A run of an earlier command may go on: it is left as it is, so that the next command finds it.
            self.over[name] = told
            self.say(f"{name} cannot go on now: {reason}")
            return
        if told == SKIPPED or before is None or name not in self.jobs:  # nothing of it has run for this command
            state = replace(before or StepState(name), key="", state=told, began=now, ended=now, reason=reason, cached=False)
        else:
            state = replace(before, state=told, ended=now, reason=reason)
        self.keep(state)
        self.over[name] = told
        words = {COMPLETED: "completed", FAILED: "failed", STOPPED: "stopped", SKIPPED: "is skipped"}[told]
        took = f" in {duration(max(0.0, state.ended - state.began))}" if name in self.jobs else ""
        self.say(f"{name} {words}{took}" + (f": {reason}" if reason else ""))

    def finish(self) -> int:
        """Says how it ended; returns the exit status."""
        if self.stop_signal:
            self.say(f"{self.stopped}: the same command goes on")
            return self.stop_status
        bad = [name for name, told in self.over.items() if told in (FAILED, STOPPED)]
        if bad:
            self.say(f"not completed: {', '.join(bad)}; the same command goes on from there")
            return EXIT_USER
        self.say("over: every step has completed or was skipped")
        return EXIT_SUCCESS


NOT_RUN = "NotRun"
