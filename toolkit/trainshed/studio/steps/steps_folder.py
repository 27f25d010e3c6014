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
import time
from dataclasses import asdict, dataclass
from typing import Any

from trainshed.base.disk_full import Shortage
from trainshed.base.errors import EXIT_JOB, TrainshedError, did_you_mean
from trainshed.base.files import read_object, write_atomic
from trainshed.base.locks import hold, is_held

PIPELINES = "pipelines"
FORMAT = 1
LARGEST = 16 << 20  # bytes of a file of ours
PATIENCE = 2.0  # seconds: a command that was killed may have left a child that has not let go of the lock yet
IN_PROGRESS, COMPLETED, FAILED, STOPPED, SKIPPED = "InProgress", "Completed", "Failed", "Stopped", "Skipped"
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


class NoPipelineError(TrainshedError):
    """There is no such pipeline."""

    exit_code = EXIT_JOB


class StepsFolder:
    """The folder of one pipeline. path: absolute."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._lock = -1

    def run(self, name: str, number: int) -> str:
        """The folder of a step's run."""
        return f"{self.path}/runs/{name}-{number}"

    def lock_of(self, name: str, number: int) -> str:
        """The lock of a run's runner."""
        return f"{self.run(name, number)}.lock"

    @property
    def code(self) -> str:
        """Where copies of code are."""
        return f"{self.path}/code"

    @property
    def log(self) -> str:
        """What was said."""
        return f"{self.path}/conductor.log"

    @property
    def shown(self) -> str:
        """Its path for a person: as short as it can be here."""
        near = os.path.relpath(self.path)
        return self.path if near.startswith("..") else near

    def claim(self) -> None:
        """Makes the folder, and makes this process the only one that works in it until it ends.

        Raises:
            TrainshedError: another one does, or the folder holds other things or cannot be used.
        """
        try:
            held = set(os.listdir(self.path)) if os.path.isdir(self.path) else set()
            if held and not held & {"pipeline.json", "conductor.lock", "steps"}:
                other = ", ".join(sorted(held)[:3])
                raise TrainshedError(f"{self.shown} holds other things ({other})", hint="name a new folder with --output")
            for name in ("steps", "runs"):
                os.makedirs(f"{self.path}/{name}", exist_ok=True)
            lock = f"{self.path}/conductor.lock"
            deadline = time.monotonic() + PATIENCE
            while (fd := hold(lock)) is None:
                if time.monotonic() > deadline:
                    raise TrainshedError(
                        f"the pipeline in {self.shown} is being run already, by process {self._pid()}",
                        hint="`trainshed steps status` shows it; use another --output for a second one",
                    )
                time.sleep(0.05)
            self._lock = fd
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise self.unusable(error) from error

    def release(self) -> None:
        """Lets another process work here."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def conductor(self) -> int:
        """PID of the process that works here, 0 if none does; -1 where it is not known which."""
        return self._pid() if is_held(f"{self.path}/conductor.lock") else 0

    def _pid(self) -> int:
        try:
            with open(f"{self.path}/conductor.lock") as file:
                text = file.read(20).strip()
        except OSError:
            return -1
        return int(text) if text.isascii() and text.isdigit() else -1

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

    def write(self, name: str, text: str) -> None:
        """Replaces one of the folder's files. Raises TrainshedError."""
        try:
            write_atomic(f"{self.path}/{name}", text)
        except OSError as error:
            raise self.unusable(error) from error

    def shortage(self) -> Shortage:
        """Who runs while the disk of this folder is full."""
        return Shortage(self.path, self.unusable)

    def unusable(self, error: OSError) -> TrainshedError:
        """What is wrong with the folder, in words."""
        return TrainshedError(
            f"cannot write in the pipeline's folder: {error.filename or self.path}: {error.strerror}",
            hint="nothing is lost; make room, then give the same command again",
        )


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


def _changed(folder: str) -> float:
    try:
        return os.stat(f"{folder}/pipeline.json").st_mtime
    except OSError:
        return 0.0


def find(text: str) -> StepsFolder:
    """A pipeline by its folder, its name or the beginning of that; the one that was started last for "".

    Raises:
        NoPipelineError: there is none, or several begin so.
    """
    if text and os.path.isfile(f"{text}/pipeline.json"):
        return StepsFolder(text)
    if "/" in text:
        raise NoPipelineError(f"{text} is not the folder of a pipeline: it has no pipeline.json")
    try:
        names = [name for name in os.listdir(PIPELINES) if os.path.isfile(f"{PIPELINES}/{name}/pipeline.json")]
    except OSError:
        names = []
    if not names:
        raise NoPipelineError("there are no pipelines in ./pipelines", hint="start one: trainshed steps run PIPELINE.yaml")
    if not text:
        return StepsFolder(max((f"{PIPELINES}/{name}" for name in names), key=_changed))
    begins = [text] if text in names else sorted(name for name in names if name.startswith(text))
    if len(begins) == 1:
        return StepsFolder(f"{PIPELINES}/{begins[0]}")
    if begins:
        raise NoPipelineError(f"{len(begins)} pipelines begin with {text!r}: {', '.join(begins)}")
    near = did_you_mean(text, names)
    raise NoPipelineError(f"there is no pipeline {text!r} in ./pipelines" + (f": {near}" if near else ""))
