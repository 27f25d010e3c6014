"""Notices of interruption, from the supervisor to the ranks, and their answers; both are files.

The supervisor of each host sets `TRAINSHED_NOTICE_FILE` for its ranks: the name of a file that does not exist. When a
notice comes (a stop signal, a cloud's announcement, Slurm's warning), the file appears, whole, by rename: one JSON
object, a `Notice`. A later, more urgent notice replaces it with a higher `number`. A loop that can stop at a step
boundary (`trainshed.checkpoint`) looks at the file's inode from time to time, which costs a microsecond.

A rank that stops because of a notice leaves an `Acknowledgement` beside the file, `interrupted.rank<n>.json`: from
it the supervisor tells an interruption from a success, also on hosts without a notice.

Stop signals still reach the script as signals, at once. Announcements of a platform (`stop` true) reach those ranks
that have a handler for SIGTERM as SIGTERM; the others go on, as the platform's own signal is still to come.
"""

from __future__ import annotations

import json
import os

from trainshed.base.files import read_bytes, write_atomic
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIMIT = 1 << 20  # bytes


class Notice(Record):
    """An announced interruption of this host.

    number: counts the notices of a run, from 1.
    source: what announced it: `SIGTERM`, `ec2`, `ec2-rebalance`, `gce`, `azure`, `slurm`.
    reason: for a person, on one line.
    stop: whether to save and stop; false where only the risk has grown: save and go on.
    received, deadline: seconds since the epoch; deadline None if unknown.
    """

    number: int
    source: str
    reason: str
    stop: bool
    received: float
    deadline: float | None = None

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the deadline, None if unknown."""
        return None if self.deadline is None else max(0.0, self.deadline - now)


class Acknowledgement(Record):
    """A rank has stopped because of a notice, after `step` steps; `checkpoint` is its path, "" where none was made."""

    rank: int
    step: int
    checkpoint: str
    reason: str


def write_notice(path: str, notice: Notice) -> None:
    """Puts the notice where the ranks look; makes the folder, for this user alone. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_atomic(path, json.dumps(notice.plain()))


def read_notice(path: str) -> Notice | None:
    """Returns the notice, None if it is absent or unreadable."""
    value = _read(path)
    try:
        return None if value is None else Notice(**value)
    except TypeError:
        return None


def write_answer(notice_path: str, answer: Acknowledgement) -> None:
    """Leaves a rank's answer for the supervisor of its host. Raises OSError."""
    folder = os.path.dirname(notice_path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_atomic(f"{folder}/interrupted.rank{answer.rank}.json", json.dumps(answer.plain()))


def read_answers(notice_path: str) -> list[Acknowledgement]:
    """The answers of this host's ranks, in no order."""
    folder = os.path.dirname(notice_path)
    try:
        names = [name for name in os.listdir(folder) if name.startswith("interrupted.rank") and name.endswith(".json")]
    except OSError:
        return []
    values = [_read(f"{folder}/{name}") for name in names]
    return [
        Acknowledgement(**value) for value in values if value is not None and value.keys() == set(Acknowledgement._fields)
    ]


class NoticeWatch:
    """Looks for notices from inside a rank; `look` costs one stat."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._number = 0

    def look(self) -> Notice | None:
        """Returns a notice that has not been returned before, else None."""
        if not self._path:
            return None
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return None
        self._seen = seen
        notice = read_notice(self._path)
        if notice is None or notice.number <= self._number:
            return None
        self._number = notice.number
        return notice


def _read(path: str) -> dict[str, Any] | None:
    try:
        data = read_bytes(path, _LIMIT)
        value = json.loads(data) if data else None
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
