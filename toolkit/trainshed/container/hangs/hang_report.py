"""The hang report: the hosts' parts, the whole report, its file and its lines on the console."""

from __future__ import annotations

import os

from trainshed.base.errors import EXIT_TIMEOUT
from trainshed.base.files import write_atomic
from trainshed.base.record import Record
from trainshed.contract.outcome import Failure

from .activity import GAVE_UP, Activity
from .stragglers import HangVerdict, Where, hint, judge, lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .sample import Sample

LONGEST_PART = 200_000  # characters of one host's stacks; a message between hosts has at most 1 MiB


class HostReport(Record):
    """The part of a report that one host contributes.

    ranks: what each of its ranks is doing.
    text: their stacks.
    moved: whether a rank has moved since the host said that all of them stand still.
    recorded: how many of its ranks write a flight recorder's dump.
    """

    host: str
    ranks: tuple[Where, ...]
    text: str
    moved: bool = False
    recorded: int = 0

    @staticmethod
    def of(plain: dict[str, Any]) -> HostReport:
        """The inverse of `plain`. Raises KeyError, TypeError, ValueError."""
        ranks = [
            Where(None if item["rank"] is None else int(item["rank"]), str(item["host"]), Activity.of(item["activity"]))
            for item in plain["ranks"]
        ]
        return HostReport(str(plain["host"]), tuple(ranks), str(plain["text"]), bool(plain["moved"]), int(plain["recorded"]))


class HangReport(Record):
    """The report of all hosts.

    why: why it was made, for the user.
    missing: the hosts that did not answer.
    """

    why: str
    verdict: HangVerdict
    parts: tuple[HostReport, ...]
    missing: tuple[str, ...] = ()

    def console(self, path: str) -> list[str]:
        """The lines for the console, at most 12. path: the report's file, "" if it could not be written."""
        everyone = [where for part in self.parts for where in part.ranks]
        missing = [f"  no answer from {', '.join(self.missing[:8])}"] if self.missing else []
        place = f"  stacks of all threads: {path}" if path else "  (the stacks could not be written)"
        recorded = sum(part.recorded for part in self.parts)
        dumps = [
            f"  {recorded} rank(s) have written their last collectives to flight-recorder-rank-* (torchfrtrace reads them)"
        ]
        head = f"hang report, {self.why}: {self.verdict.sentence}"
        return [head, *lines(everyone), *missing, *(dumps if recorded else ()), place]

    def text(self) -> str:
        """The file."""
        head = self.console("below")
        return "\n".join([*head, ""]) + "\n" + "\n".join(part.text for part in self.parts)

    def failure(self, host: str, path: str, at: float) -> Failure:
        """The hang as the job's failure. host: this host; path: the report's file; at: seconds since the start."""
        first = self.verdict.stragglers[0] if self.verdict.stragglers else None
        return Failure(
            kind="Hang",
            summary=self.verdict.sentence,
            exit_code=EXIT_TIMEOUT,
            hint=f"{hint(self.verdict)}; trainshed_hang_seconds sets how long ranks may stand still",
            details="\n".join(self.console(path)),
            host=first.host if first else host,
            rank=first.rank if first else None,
            at=at,
        )


def part_of(
    host: str,
    samples: list[Sample],
    moved: bool,
    recorded: int = 0,
    collectives: dict[int, str] | None = None,
    gave_up: frozenset[int | None] = frozenset(),
) -> HostReport:
    """This host's part.

    Args:
        collectives: what the flight recorders of its ranks say, by rank.
        gave_up: ranks in which a collective has timed out. Wherever they are now, that is what they did.
    """
    texts = []
    gone = Activity(GAVE_UP)
    samples = [
        sample.replace(where=sample.where.replace(activity=gone)) if sample.where.rank in gave_up else sample
        for sample in samples
    ]
    known = collectives or {}
    for sample in samples:
        name = "the script" if sample.where.rank is None else f"rank {sample.where.rank}"
        words = sample.where.activity.words(False)
        recorder = known.get(sample.where.rank, "") if sample.where.rank is not None else ""
        recorder_line = f"flight recorder: {recorder}\n" if recorder else ""
        texts.append(f"=== {name} on {host} {words} ===\n{recorder_line}{sample.text}")
    share = LONGEST_PART // max(1, len(texts))  # so that one rank's stacks do not push out another's
    return HostReport(host, tuple(s.where for s in samples), "\n".join(cut(text, share) for text in texts), moved, recorded)


def cut(text: str, limit: int) -> str:
    """The text, or its beginning and end if it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit // 2]}\n[...]\n{text[-limit // 2 :]}"


def put_together(why: str, parts: list[HostReport], missing: list[str]) -> HangReport:
    """Makes the report of all hosts. missing: the hosts that did not answer."""
    return HangReport(why, judge(where for part in parts for where in part.ranks), tuple(parts), tuple(missing))


def write(folder: str, host: str, text: str) -> str:
    """Writes `hang-<host>-<n>.txt` with the next free n; returns its path, "" if it cannot be written."""
    number = 1
    while os.path.exists(path := f"{folder}/hang-{host}-{number}.txt"):
        number += 1
    try:
        write_atomic(path, text)
    except OSError:
        return ""
    return path
