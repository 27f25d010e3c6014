"""`trainshed tune`, from the command to its exit status: claims the folder, checks what is there, tunes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import EXIT_SUCCESS, JobError, TrainshedError
from trainshed.runner.control.operations import stop as stop_run
from trainshed.runner.control.resolve_models import with_pinned_models
from trainshed.runner.job.references import look_up, secrets_of
from trainshed.runner.notify.telling import Telling
from trainshed.runner.state.stored import refuse_masked
from trainshed.studio.batches.folder import shown
from trainshed.studio.batches.session import end_worker

from .board import Board, TuningStatus, page
from .describe import describe
from .propose import require_optuna
from .trial_runs import Curves, look
from .tuner import Tuner
from .tuning import POPULATION, TuningJob
from .tuning_folder import TuningFolder, described, read_asked, stored_tuning, tuning_of
from .warm import known_of

# What may be another in a later session: it does not change what a trial is.
_WRITTEN = {  # in the file
    "space": "search", "early": "early_stopping", "warm": "warm_start", "further": "objective", "place": "on",
}  # fmt: skip
_MAY_CHANGE = ("limits", "notes", "notify", "file", "created")
_JOB_MAY_CHANGE = (
    "source_dir",
    "notes",
    "tags",
    "grace_seconds",
    "environment",
    "references",
    "resources",
    "retries",
    "notify",
)


def tune(tuning: TuningJob, file: str, path: str, environ: Mapping[str, str], retry_failed: bool = False) -> int:
    """Runs a tuning job to its end, or goes on with it; returns the exit status.

    Args:
        retry_failed: whether trials that have failed are run again.
        file: where it was read from. path: its folder.

    Raises:
        TrainshedError: it cannot be run; nothing is lost.
    """
    if retry_failed and tuning.strategy.kind == POPULATION:
        raise TrainshedError(
            "trials of a population cannot be run again: later generations go on without those that failed",
            hint="start it again under another name",
        )
    folder = TuningFolder(path)
    require_optuna(tuning)
    folder.claim()
    board = Board(folder.log, environ)
    try:
        tuning = _prepared(tuning, file, folder, environ, board.say)
        board.say(f"{tuning.name}: {tuning.strategy.kind} search, in {folder.shown}")
        for note in tuning.notes:
            board.say(f"note: {note}")
        known = known_of(tuning, board.say)
        try:
            telling = Telling(tuning.notify, tuning.name, folder.path, folder.log, secrets_of(tuning.job, {}))
            telling.tell("start", "InProgress", f"{tuning.strategy.kind} search, {tuning.aim}")
            status = Tuner(tuning, folder, environ, known, board.say, board.show, retry_failed).run()
            ended = {"status": "", "reason": "", **folder.outcome()}
            telling.tell("failure" if ended["status"] == "Failed" else "end", ended["status"], ended["reason"])
        except TrainshedError:
            running = [one.number for one in folder.trials(tuning.space) if look(folder, one.number).runner]
            if running:
                board.say(f"trials that run go on: {', '.join(map(str, running))}; `trainshed tune --resume` watches them")
            raise
        finally:
            board.close()
        folder.release()
        view, told, reason = standing(folder)
        print(page(view, told, reason, folder.shown, time.time()), end="")
        return status
    finally:
        folder.release()


def resume(
    folder: TuningFolder, environ: Mapping[str, str], change: Callable[[TuningJob], TuningJob], retry_failed: bool = False
) -> int:
    """Goes on with a tuning job as it was understood; returns the exit status. Raises TrainshedError."""
    tuning = change(stored_tuning(folder))
    file = str(read_asked(folder).get("file") or "its file")
    try:
        refuse_masked(tuning.job, tuning.name)
    except JobError as error:
        raise TrainshedError(
            f"{folder.shown}: a secret that was given as plain text was not kept: {error.problems[0].field}",
            hint=f"start it again by its file: trainshed tune {file}",
        ) from None
    return tune(tuning, file, folder.path, environ, retry_failed)


def _prepared(
    tuning: TuningJob, file: str, folder: TuningFolder, environ: Mapping[str, str], say: Callable[[str], None]
) -> TuningJob:
    """The tuning job with the folder's code; what was asked for is written down."""
    look_up(tuning.job, environ)  # a secret that leads nowhere is said before anything is started
    tuning = replace(tuning, job=with_pinned_models(tuning.job, environ))  # all trials get the same model
    before = read_asked(folder)
    secrets = secrets_of(tuning.job, {})
    if before:
        _compare(before, described(tuning, file, 0.0, secrets), folder)
    elif os.path.exists(folder.asked):
        say(f"{shown(folder.asked)} is damaged: it is written anew; the trials are all there")
    tuning = replace(tuning, job=replace(tuning.job, source_dir=_code(tuning, folder, environ, say)))
    created = before.get("created")
    asked = described(tuning, file, created if isinstance(created, float) else time.time(), secrets)
    folder.write("tune.json", json.dumps(asked, indent=2) + "\n")
    return tuning


def _compare(before: dict[str, Any], now: dict[str, Any], folder: TuningFolder) -> None:
    """Raises TrainshedError where another tuning job is in the folder: its trials would not be comparable."""
    now = json.loads(json.dumps(now))
    try:
        tuning_of(before)
    except ValueError:
        return  # damaged: written anew
    kept, given = before["job"], now["job"]
    names = [name for name in given if name not in _JOB_MAY_CHANGE and given[name] != kept.get(name)]
    changed = [f"job.{name}" for name in names]
    names = [name for name in now if name not in (*_MAY_CHANGE, "job") and now[name] != before.get(name)]
    changed += dict.fromkeys(_WRITTEN.get(name, name) for name in names)
    if changed:
        raise TrainshedError(
            f"{folder.shown} holds another tuning job: {', '.join(changed)} differ",
            hint="give this one another name or --output; of an earlier one, limits may change",
        )


def _code(tuning: TuningJob, folder: TuningFolder, environ: Mapping[str, str], say: Callable[[str], None]) -> str:
    """The folder with the code of all trials: a copy, so that all run the same whatever is edited meanwhile.

    Raises:
        TrainshedError: it cannot be copied.
    """
    source = tuning.job.source_dir
    if os.path.isdir(folder.code):
        return folder.code
    if not os.path.isdir(source):
        return source
    aside = folder.copy_code(
        source, [*(channel.path for channel in tuning.job.channels), tuning.job.checkpoints], environ, say
    )
    with folder.guarded():
        os.rename(aside, folder.code)
    return folder.code


def standing(folder: TuningFolder) -> tuple[TuningStatus, str, str]:
    """(how a tuning job stands, its HyperParameterTuningJobStatus, why). Raises TrainshedError where its file is damaged."""
    tuning = stored_tuning(folder)
    trials = folder.trials(tuning.space)
    curves = Curves(folder, tuning.objective, tuning.early)
    latest = {trial.number: curve[-1] for trial in trials if not trial.over and (curve := curves.of(trial.number))}
    outcome = folder.outcome()
    view = TuningStatus(tuning, tuple(trials), latest)
    if folder.worker:
        return view, "InProgress", ""
    if outcome:
        return view, str(outcome["status"]), str(outcome["reason"])
    looks = {trial.number: look(folder, trial.number) for trial in trials if not trial.over}
    running = [str(number) for number, now in looks.items() if now.runner or now.adrift]
    more = f"trials {', '.join(running)} go on; " if running else ""
    return view, "Stopped", f"its tuner was killed; {more}`trainshed tune --resume` goes on"


def status(folder: TuningFolder, *, as_json: bool) -> int:
    """Prints how a tuning job stands; returns the exit status. Raises TrainshedError."""
    view, told, reason = standing(folder)
    if as_json:
        asked = read_asked(folder)
        print(json.dumps(describe(view, folder, told, reason, asked), indent=2))
    else:
        print(page(view, told, reason, folder.shown, time.time()), end="")
    return EXIT_SUCCESS


def stop(folder: TuningFolder, environ: Mapping[str, str], say: Callable[[str], None], *, kill: bool) -> int:
    """Stops a tuning job and prints how it stands; returns the exit status. Raises TrainshedError."""
    end(folder, environ, say, kill=kill)
    view, told, reason = standing(folder)
    print(page(view, told, reason, folder.shown, time.time()), end="")
    return EXIT_SUCCESS


def end(folder: TuningFolder, environ: Mapping[str, str], say: Callable[[str], None], *, kill: bool) -> None:
    """Asks the tuner to end, and with it its trials; where it was killed, ends the trials.

    Raises:
        TrainshedError: it cannot be stopped from here.
    """
    end_worker(folder, kill=kill)
    tuning = stored_tuning(folder)
    for trial in folder.trials(tuning.space):
        now = look(folder, trial.number)
        if not trial.over and now.can_be_stopped:
            folder.save(replace(trial, paused=True))
            stop_run(now.run, environ, say, kill=kill)
