"""`trainshed steps`, from the command to its exit status: claims the folder, runs the pipeline, says how it stands."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import EXIT_SUCCESS, TrainshedError, did_you_mean
from trainshed.base.files import write_atomic
from trainshed.base.secrets import mask_mapping
from trainshed.runner.control.operations import stop as stop_run
from trainshed.runner.files.run import REPORT
from trainshed.studio.batches.folder import IN_PROGRESS, Say
from trainshed.studio.batches.held_runs import lives, look_at
from trainshed.studio.batches.session import Log, end_worker
from trainshed.studio.tune.sessions import end as end_tuning
from trainshed.studio.tune.tuning_folder import TuningFolder

from .conductor import Conductor
from .drawing import WAITING, Box, picture, table
from .steps_folder import FORMAT, StepsFolder, StepState
from .steps_plan import TUNE, PipelineDefinition
from .tuning_step import PAGE, progress

PICTURE = "picture.svg"


def run(
    pipeline: PipelineDefinition, path: str, environ: Mapping[str, str], *, from_step: str = "", no_cache: bool = False
) -> int:
    """Runs a pipeline, or goes on with it; returns the exit status.

    Args:
        path: its folder. from_step: runs again with all that needs it, whether anything has changed or not.
        no_cache: every step does.

    Raises:
        TrainshedError: it cannot be run; what runs then goes on, and nothing is lost.
    """
    names = [step.name for step in pipeline.steps]
    if from_step and from_step not in names:
        raise TrainshedError(f"--from {from_step}: is not a step", hint=did_you_mean(from_step, names))
    forced = set(names) if no_cache else pipeline.below(from_step) if from_step else set()
    folder = StepsFolder(path)
    folder.claim()
    try:
        say = Log(folder.log).say
        before = folder.about()
        other = before.get("file")
        if other and other != pipeline.path:
            raise TrainshedError(
                f"{folder.shown} holds another pipeline, of {other}", hint="name this one otherwise, or use --output"
            )
        now = time.time()
        since = before.get("since")
        # A command that was killed has not done all that it was told to do anew.
        goes_on = before.get("over") is False and before.get("forced") == sorted(forced)
        about = _described(pipeline, now, sorted(forced), since if goes_on and isinstance(since, float) else now)
        folder.write("pipeline.json", json.dumps(about, indent=1) + "\n")
        say(f"{pipeline.name}: {len(names)} steps, in {folder.shown}")
        conductor = Conductor(pipeline, folder, environ, say, forced=forced, since=about["since"], session=now)
        status = conductor.run()
        if not conductor.stop_signal:
            folder.write("pipeline.json", json.dumps({**about, "over": True}, indent=1) + "\n")
        draw(folder)
    finally:
        folder.release()
    print(table(standing(folder)), end="")
    return status


def _described(pipeline: PipelineDefinition, now: float, forced: list[str], since: float) -> dict[str, Any]:
    params = mask_mapping({name: node.text for name, node in pipeline.params.items()}, ())
    steps = [{"name": step.name, "kind": step.kind, "needs": list(step.needs)} for step in pipeline.steps]
    return {
        "format": FORMAT, "name": pipeline.name, "file": pipeline.path, "params": params, "steps": steps,
        "began": now, "forced": forced, "since": since, "over": False,
    }  # fmt: skip


def plan(pipeline: PipelineDefinition) -> list[Box]:
    """The steps of a pipeline of which nothing has run."""
    return [Box(step.name, step.kind, step.needs, WAITING, 0.0) for step in pipeline.steps]


def standing(folder: StepsFolder) -> list[Box]:
    """How each step of a pipeline's folder stands. Raises TrainshedError where its file is damaged."""
    about = folder.about()
    if not about:
        raise TrainshedError(
            f"{folder.shown}/pipeline.json is damaged", hint="run the pipeline again: its steps are all there"
        )
    boxes = []
    for one in about["steps"]:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not _is_plain(one["name"]):
            continue
        needs = tuple(str(name) for name in one["needs"]) if isinstance(one.get("needs"), list) else ()
        state = folder.state(one["name"])
        kind = str(one.get("kind"))
        if state is None or state.session != about.get("began"):
            boxes.append(Box(one["name"], kind, needs, WAITING, 0.0))
        else:
            boxes.append(_box(folder, state, kind, needs))
    return boxes


def _is_plain(name: str) -> bool:
    return name.replace("-", "").isalnum()


def _box(folder: StepsFolder, state: StepState, kind: str, needs: tuple[str, ...]) -> Box:
    ended = state.ended if state.state != IN_PROGRESS else time.time()
    run = folder.run(state.name, state.number) if state.number else ""
    detail = state.reason or state.version
    if kind == "condition" and not detail:
        detail = "true" if state.value else "false"
    shown = "waits to go on" if state.state == IN_PROGRESS and state.paused else detail
    if state.state == IN_PROGRESS and not state.paused and run:
        alive = lives(run)
        detail = detail or (progress(run) if kind == TUNE else "")
        shown = detail if alive else "its runner is not there: the same command goes on"
    report = f"runs/{state.name}-{state.number}/{PAGE if kind == TUNE else REPORT}"
    has_report = bool(run) and os.path.isfile(f"{folder.path}/{report}")
    seconds = max(0.0, ended - state.began)
    return Box(state.name, kind, needs, state.state, seconds, shown, run, report if has_report else "", state.cached)


def draw(folder: StepsFolder) -> str:
    """Writes the picture; its path. A disk that takes no more costs the picture."""
    path = f"{folder.path}/{PICTURE}"
    try:
        write_atomic(path, picture(str(folder.about().get("name")), standing(folder)))
    except OSError:
        return ""
    return path


def status(folder: StepsFolder, *, as_json: bool) -> int:
    """Prints how a pipeline stands; returns the exit status. Raises TrainshedError."""
    boxes = standing(folder)
    about = folder.about()
    if as_json:
        told = {
            "pipeline": about.get("name"), "folder": folder.path, "file": about.get("file"), "params": about.get("params"),
            "running": bool(folder.worker), "steps": [box.plain() for box in boxes],
        }  # fmt: skip
        print(json.dumps(told, indent=2))
    else:
        print(table(boxes), end="")
    return EXIT_SUCCESS


def stop(folder: StepsFolder, environ: Mapping[str, str], say: Say, *, kill: bool) -> int:
    """Stops a pipeline and prints how it stands; returns the exit status. Raises TrainshedError."""
    end(folder, environ, say, kill=kill)
    print(table(standing(folder)), end="")
    return EXIT_SUCCESS


def end(folder: StepsFolder, environ: Mapping[str, str], say: Say, *, kill: bool) -> None:
    """Asks the command that runs a pipeline to end, and with it its runs; where it was killed, stops those.

    Raises:
        TrainshedError: it cannot be stopped from here.
    """
    end_worker(folder, kill=kill)
    for box in standing(folder):
        state = folder.state(box.name)
        if state is None or box.state != IN_PROGRESS or not state.number:
            continue
        path = folder.run(state.name, state.number)
        if box.kind == TUNE:
            if lives(path):
                folder.save(replace(state, paused=True))
            if os.path.isdir(path):
                end_tuning(TuningFolder(path), environ, say, kill=kill)
            continue
        now = look_at(path)
        if now.can_be_stopped:
            folder.save(replace(state, paused=True))
            stop_run(now.run, environ, say, kill=kill)
