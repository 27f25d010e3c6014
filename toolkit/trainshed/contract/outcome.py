"""`output/failure` and `output/success`, from which the platform and the SDKs read how a job ended."""

from __future__ import annotations

import errno
import os

from trainshed.base.files import read_bytes, remove, write_atomic
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .paths import Paths

REASON_BYTES = 1024  # the platform's FailureReason takes the first 1,024 characters


class Failure(Record):
    """Why a job failed: the first cause.

    kind: `UserError` (the script or its input), `JobError`, `ProgramError`, `LaunchError`, `ClusterError`, `Interrupted`,
        `LimitError` (a limit of the machine ended `train` itself),
        `Stopped` (ended because another host had failed), `Hang` (all ranks stood still), `InternalError`.
    summary: one line: rank and host that failed first, how, exception and message.
    place: the user's file:line and function, "" where unknown.
    hint: what to do, "" where unknown.
    tail: the last lines that the failing rank printed.
    at: seconds from the start of the run to the first sign of the failure (its traceback, or the exit).
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

    def masked(self, mask: Callable[[str], str]) -> Failure:
        """The same without secrets, before it goes to other hosts, to the record and to the failure file."""
        texts = ("summary", "place", "hint", "tail", "details")
        return self.replace(**{name: mask(getattr(self, name)) for name in texts})

    def text(self) -> str:
        """Returns the failure file's text: the diagnosis within the first 1,024 bytes, then details and tail."""
        hint = f"hint: {self.hint}" if self.hint else ""
        place = f"  at {self.place}" if self.place else ""
        room = REASON_BYTES - len(f"{self.kind}: \n{place}\n{hint}\n".encode("utf-8", "replace")) - 1
        head = [f"{self.kind}: {clip(self.summary, max(room, 200))}", place, hint]
        parts = ["\n".join(line for line in head if line), self.details, self.tail and f"last output:\n{self.tail}"]
        return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def clip(text: str, limit: int) -> str:
    """Cuts `text` to `limit` bytes of UTF-8 without splitting a character; `...` marks the cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 5].decode("utf-8", "ignore") + " ..."


def clear_outcome(paths: Paths) -> None:
    """Removes the outcome of an earlier run."""
    remove(paths.failure)
    remove(paths.success)


def write_success(paths: Paths) -> None:
    """Writes the empty success file and removes any failure file. Raises OSError."""
    remove(paths.failure)
    write_atomic(paths.success, b"")


def write_failure(paths: Paths, text: str, mask: Callable[[str], str] = str) -> None:
    """Writes the failure file, after what the script itself wrote there, both masked. Raises OSError."""
    remove(paths.success)
    own, text = mask(read_own_failure(paths)), mask(text)
    write_atomic(paths.failure, f"{own.rstrip()}\n\n{text}" if own else text)


def read_own_failure(paths: Paths) -> str:
    """Returns the failure reason that the script wrote, "" if it wrote none."""
    try:
        data = read_bytes(paths.failure, 1 << 20, cut=True, links=False)
    except OSError as error:
        return f"{paths.failure} of the script is not read: {error.strerror}" if error.errno == errno.ELOOP else ""
    return (data or b"").decode("utf-8", "replace").strip("\0 \r\n\t")


def writable(folder: str) -> bool:
    """Creates the folder if absent; returns whether files can be created in it."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
