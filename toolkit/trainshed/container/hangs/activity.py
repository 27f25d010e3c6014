"""The meaning of a stack: the collective that a rank waits in, or what else it does, and the line of the user's code."""

from __future__ import annotations

import os

from trainshed.base.record import Record

from .stacks import Frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COLLECTIVE, GAVE_UP, WORK, UNKNOWN, ENDED = "collective", "gave up", "work", "unknown", "ended"
WAITING = (COLLECTIVE, GAVE_UP)  # for other ranks
_OUTSIDE = ("/site-packages/", "/dist-packages/", "/lib/python3")
# Parts of torch.distributed that do not wait for other ranks.
_NOT_WAITING = ("checkpoint", "elastic", "launcher", "pipelining", "debug", "run.py")
_DATA = "/torch/utils/data/"
# (part of a file's path, beginning of a function's name, what the rank is doing); the most specific first
_WORK = (
    ("/torch/serialization.py", "save", "saving a file"),
    ("/torch/distributed/checkpoint/", "", "saving or loading a checkpoint"),
    ("/trainshed/checkpoint/", "", "saving or loading a checkpoint"),
    ("/torch/serialization.py", "load", "loading a file"),
    ("/torch/cuda/__init__.py", "synchronize", "waiting for the GPU"),
    ("/torch/cuda/streams.py", "synchronize", "waiting for the GPU"),
    ("/torch/_inductor/", "", "compiling"),
    ("/torch/_dynamo/", "compile", "compiling"),
    ("/subprocess.py", "", "waiting for another program"),
    ("/multiprocessing/", "", "waiting for another process"),
    ("/threading.py", "", "waiting for another thread"),
    ("/socket.py", "", "waiting for the network"),
    ("/ssl.py", "", "waiting for the network"),
)


class Activity(Record):
    """The activity of a rank at one moment.

    kind: COLLECTIVE (it waits for other ranks), GAVE_UP (it did, until that timed out), WORK, UNKNOWN (it shows no Python
        stack) or ENDED.
    what: the collective's name, or words like `data loading`; "" if there is nothing to add to the place.
    place: `train.py:41`, the innermost line of the user's code; "" if there is no such line.
    function: the user's function there; "" at the top of the script.
    """

    kind: str
    what: str = ""
    place: str = ""
    function: str = ""

    @staticmethod
    def of(plain: dict[str, Any]) -> Activity:
        """The inverse of `plain`. Raises TypeError."""
        return Activity(**{name: str(plain.get(name, "")) for name in Activity._fields})

    def words(self, several: bool) -> str:
        """`waits in all_reduce at train.py:60`, `are in data loading at train.py:41`: the rest of a sentence."""
        at = f" at {self.place}" if self.place else ""
        are = "are" if several else "is"
        if self.kind == COLLECTIVE:
            return f"{'wait' if several else 'waits'} in {self.what}{at}"
        if self.kind == GAVE_UP:
            return f"{'have' if several else 'has'} given up waiting in a collective"
        if self.kind == ENDED:
            return f"{'have' if several else 'has'} ended ({self.what})"
        if self.kind == UNKNOWN:
            return f"{'show' if several else 'shows'} no Python stack ({self.what})"
        if self.what:
            return f"{are} in {self.what}{at}"
        return f"{are}{at}" + (f" in {self.function}" if self.function else "")


def activity(frames: tuple[Frame, ...], code_folder: str) -> Activity:
    """Says what the main thread of a rank is doing.

    Args:
        frames: its stack, innermost first; not empty.
        code_folder: where the user's code lies.
    """
    place, function = _place(frames, code_folder)
    name = _collective(frames)
    if name:
        return Activity(COLLECTIVE, name, place, function)
    if any(_DATA in frame.file for frame in frames):  # the user's own data set is called from there
        return Activity(WORK, "data loading", place, function)
    called = next((n for n, frame in enumerate(frames) if _is_own(frame.file, code_folder)), len(frames))
    for part, of, words in _WORK:  # what the user called into
        if any(part in frame.file and frame.function.startswith(of) for frame in frames[:called]):
            return Activity(WORK, words, place, function)
    return Activity(WORK, "", place, function)


def _collective(frames: tuple[Frame, ...]) -> str:
    """The collective that the innermost frames are in: the outermost public function of torch.distributed among them.

    Under DDP and FSDP gradients are reduced in `backward`, whose wait is in C++.
    """
    if frames[0].function == "_engine_run_backward":
        return "backward"
    name = ""
    for frame in frames:
        _, inside, rest = frame.file.partition("/torch/distributed/")
        if not inside or rest.startswith(_NOT_WAITING):
            break
        if not frame.function.startswith("_") and frame.function not in ("wrapper", "inner", "fn"):
            name = frame.function
        elif not name:
            name = frame.function.strip("_")
    return name


def _place(frames: tuple[Frame, ...], code_folder: str) -> tuple[str, str]:
    """The innermost line of the user's code, else of all code, and its function."""
    frame = next((frame for frame in frames if _is_own(frame.file, code_folder)), frames[0])
    file = frame.file
    if code_folder and file.startswith(code_folder.rstrip("/") + "/"):
        file = os.path.relpath(file, code_folder)
    return f"{file}:{frame.line}", "" if frame.function == "<module>" else frame.function


def _is_own(file: str, code_folder: str) -> bool:
    if file.startswith("<") or any(part in file for part in _OUTSIDE):
        return False
    return not code_folder or file.startswith(code_folder.rstrip("/") + "/") or not file.startswith("/")
