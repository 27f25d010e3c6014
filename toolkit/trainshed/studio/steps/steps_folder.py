"""What the folder of a pipeline keeps: files that are replaced as a whole, so that a kill at any moment leaves them whole.

pipelines/digits/
    pipeline.json         its steps as they were understood, and when the last command began
    conductor.lock        held by the command that works here; its PID is in it
    code/<digest>/        code of steps, as it was when the command began
    steps/train.json      a step: what it depended on, how it stands
    runs/train-1/         its run (runner/files/run.py); the next one is train-2
    runs/train-1.lock     held by the runner for as long as that lives
    conductor.log         what the command has said
    picture.svg
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from trainshed.base.files import read_object
from trainshed.studio.batches.folder import COMPLETED, FAILED, IN_PROGRESS, LARGEST, STOPPED, Folder

PIPELINES = "pipelines"
FORMAT = 1
SKIPPED = "Skipped"
STATES = (IN_PROGRESS, COMPLETED, FAILED, STOPPED, SKIPPED)


@dataclass(frozen=True)
class StepState:
    """How a step stands.

    key: hash of what it depended on, "" where it must not be reused. number: of its run, 0 for none.
    began, ended: seconds since the epoch. session: when the command began that has last dealt with it.
    cached: whether that command found it done. paused: stopped with the command. starts: again, after kills of its runner.
    value: of a condition. version: of a registration.
    """

    name: str
    key: str = ""
    number: int = 0
    state: str = IN_PROGRESS
    began: float = 0.0
    ended: float = 0.0
    session: float = 0.0
    reason: str = ""
    cached: bool = False
    paused: bool = False
    starts: int = 0
    value: bool = False
    version: str = ""


class StepsFolder(Folder):
    """The folder of one pipeline. path: absolute."""

    home, about_file, lock_file, log_file = PIPELINES, "pipeline.json", "conductor.lock", "conductor.log"
    parts = ("steps", "runs")
    noun, done = "pipeline", "run"
    start = "start one: trainshed steps run PIPELINE.yaml"
    resume = "give the same command again"
    busy = "the pipeline in {} is being run already"
    busy_hint = "`trainshed steps status` shows it; use another --output for a second one"

    def run(self, name: str, number: int) -> str:
        """The folder of a step's run."""
        return f"{self.path}/runs/{name}-{number}"

    def state(self, name: str) -> StepState | None:
        """How a step stands; None where it has not begun, or its file is damaged: then its runs tell how many there were."""
        found = _state_of(read_object(f"{self.path}/steps/{name}.json", LARGEST), name)
        return found if found is not None else self._from_runs(name)

    def _from_runs(self, name: str) -> StepState | None:
        """Nothing is known of the inputs of runs without a step's file: they are not reused, and not overwritten."""
        try:
            names = os.listdir(f"{self.path}/runs")
        except OSError:
            return None
        stems = [one.removeprefix(f"{name}-").removesuffix(".lock") for one in names if one.startswith(f"{name}-")]
        numbers = [int(stem) for stem in stems if stem.isascii() and stem.isdigit() and len(stem) < 7]
        return StepState(name, number=max(numbers), state=FAILED, reason="its file was damaged") if numbers else None

    def save(self, state: StepState) -> None:
        """Keeps a step's state. Raises TrainshedError where that is not possible."""
        self.write("steps/" + state.name + ".json", json.dumps(asdict(state)) + "\n")

    def about(self) -> dict[str, Any]:
        """`pipeline.json`; {} where it is missing or damaged."""
        found = read_object(f"{self.path}/pipeline.json", LARGEST)
        return found if found.get("format") == FORMAT and isinstance(found.get("steps"), list) else {}


def _state_of(data: dict[str, Any], name: str) -> StepState | None:
    """What a step's file says, whoever may have written it."""
    kinds = {field: type(getattr(StepState(""), field)) for field in StepState.__dataclass_fields__}
    if data.keys() != kinds.keys() or data["name"] != name:
        return None
    for field, kind in kinds.items():
        value = data[field]
        if kind is float and type(value) is int:
            data[field] = value = float(value)
        if type(value) is not kind or (kind is float and not abs(value) < 1e11):
            return None
    good = data["state"] in STATES and 0 <= data["number"] < 10**6
    return StepState(**data) if good else None
