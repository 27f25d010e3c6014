"""`output/failure` and `output/success`: the two files by which the platform and the SDKs learn how a job ended."""

from __future__ import annotations

import os

from trainshed.base.files import read_bytes, remove, write_atomic
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .paths import Paths

REASON_BYTES = 1024  # the platform's FailureReason takes the first 1,024 characters


class Failure(Record):
    """Why a job failed: the first cause, for a person.

    kind: `UserError` (the script or its input), `JobError`, `ProgramError`, `LaunchError`, `ClusterError`, `Interrupted`,
        `Stopped` (ended because another host had failed), `Hang` (all ranks stood still), `InternalError`.
    summary: one line: rank and host that failed first, how, exception and message.
    place: the user's file:line and function, "" where unknown.
    hint: what to do, "" where we do not know.
    tail: the last lines that the failing rank printed.
    at: seconds from the start of the run to the failure's first sign (its traceback, or the exit).
    details: everything else (all problems of a job, the full traceback).
    """

    kind: str
    summary: str
    exit_code: int
    place: str = ""
    hint: str = ""
    tail: str = ""
    details: str = ""
    host: str = ""
    rank: int | None = None
    signal: str = ""
    at: float = 0.0

    def text(self) -> str:
        """The failure file: diagnosis first, so that the first 1,024 bytes say what matters, then details and tail."""
        hint = f"hint: {self.hint}" if self.hint else ""
        place = f"  at {self.place}" if self.place else ""
        room = REASON_BYTES - len(f"{self.kind}: \n{place}\n{hint}\n".encode("utf-8", "replace")) - 1
        head = [f"{self.kind}: {clip(self.summary, max(room, 200))}", place, hint]
        parts = ["\n".join(line for line in head if line), self.details, self.tail and f"last output:\n{self.tail}"]
        return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def clip(text: str, limit: int) -> str:
    """`text` cut to `limit` bytes of UTF-8 without splitting a character, the cut shown."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 5].decode("utf-8", "ignore") + " ..."


def clear_outcome(paths: Paths) -> None:
    """Removes the files of an earlier run, so that they cannot speak for this one."""
    remove(paths.failure)
    remove(paths.success)


def write_success(paths: Paths) -> None:
    """The empty success file; any failure file goes away first. Raises OSError."""
    remove(paths.failure)
    write_atomic(paths.success, b"")


def write_failure(paths: Paths, text: str) -> None:
    """The failure file. What the user's script wrote there itself stays first. Raises OSError."""
    remove(paths.success)
    own = read_own_failure(paths)
    write_atomic(paths.failure, f"{own.rstrip()}\n\n{text}" if own else text)


def read_own_failure(paths: Paths) -> str:
    """What the user's script wrote as its own failure reason, "" where it wrote none."""
    try:
        data = read_bytes(paths.failure, 1 << 20, cut=True)
    except OSError:
        return ""
    return (data or b"").decode("utf-8", "replace").strip("\0 \r\n\t")


def writable(folder: str) -> bool:
    """Whether files can be made in the folder (made if absent)."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
