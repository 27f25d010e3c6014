"""The hang report: each host's part of it, all parts put together, the file and the lines on the console."""

from __future__ import annotations

import os

from trainshed.base.errors import EXIT_TIMEOUT
from trainshed.base.files import write_atomic
from trainshed.base.record import Record
from trainshed.contract.outcome import Failure

from .activity import Activity
from .stragglers import Verdict, Where, hint, judge, lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .sample import Sample

LONGEST_PART = 200_000  # characters of one host's stacks; a message between hosts has at most 1 MiB


class Part(Record):
    """What one host contributes.

    moved: whether something there has moved since that host had said that all stands still.
    recorded: how many of its ranks write down their last collectives, too.
    """

    host: str
    ranks: tuple[Where, ...]
    text: str
    moved: bool = False
    recorded: int = 0

    @staticmethod
    def of(plain: dict[str, Any]) -> Part:
        """The inverse of `plain`. Raises KeyError, TypeError, ValueError."""
        ranks = [
            Where(None if item["rank"] is None else int(item["rank"]), str(item["host"]), Activity.of(item["activity"]))
            for item in plain["ranks"]
        ]
        return Part(str(plain["host"]), tuple(ranks), str(plain["text"]), bool(plain["moved"]), int(plain["recorded"]))


class Report(Record):
    """What is known of all hosts. `missing`: hosts that did not answer."""

    why: str
    verdict: Verdict
    parts: tuple[Part, ...]
    missing: tuple[str, ...] = ()

    def console(self, path: str) -> list[str]:
        """At most 12 lines."""
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
        """Why the job ends, if it is to end."""
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
    host: str, samples: list[Sample], moved: bool, recorded: int = 0, collectives: dict[int, str] | None = None
) -> Part:
    """This host's part. collectives: what the flight recorders of its ranks say, by rank."""
    texts = []
    known = collectives or {}
    for sample in samples:
        name = "the script" if sample.where.rank is None else f"rank {sample.where.rank}"
        words = sample.where.activity.words(False)
        told = known.get(sample.where.rank, "") if sample.where.rank is not None else ""
        told = f"flight recorder: {told}\n" if told else ""
        texts.append(f"=== {name} on {host} {words} ===\n{told}{sample.text}")
    room = LONGEST_PART // max(1, len(texts))  # no rank's stacks push out another's
    return Part(host, tuple(s.where for s in samples), "\n".join(cut(text, room) for text in texts), moved, recorded)


def cut(text: str, limit: int) -> str:
    """The two ends of a long text."""
    return text if len(text) <= limit else f"{text[: limit // 2]}\n[...]\n{text[-limit // 2 :]}"


def put_together(why: str, parts: list[Part], missing: list[str]) -> Report:
    """The report of all hosts."""
    return Report(why, judge(where for part in parts for where in part.ranks), tuple(parts), tuple(missing))


def write(folder: str, host: str, text: str) -> str:
    """Writes `hang-<host>-<n>.txt`, n counting on from what is there; returns its path, "" where that cannot be done."""
    number = 1
    while os.path.exists(path := f"{folder}/hang-{host}-{number}.txt"):
        number += 1
    try:
        write_atomic(path, text)
    except OSError:
        return ""
    return path
