"""How fast each rank is just now: the small file that a rank keeps up to date while it trains, and its reader.

    profiler/pace/algo-1.rank-0.json

holds one JSON object, replaced after each block: eight steps, or more where they take less than half a second. What an
evaluation or a checkpoint costs lies in one block of many, and a loader whose workers bring eight batches at once is like
itself in each.
"""

from __future__ import annotations

import json
import os

from trainshed.base.files import read_object
from trainshed.base.record import Record

from .steps import PHASES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FOLDER = "pace"  # below the profiler's folder
KEPT = 8  # blocks that a rank tells of, at most
_MOST_BYTES = 1 << 14
_WAITED = ("communication", "checkpoint")  # of a step: what is not a rank's own


class Pace(Record):
    """The report of one rank on its last blocks.

    rank, world, pid, host: of the rank. local: its number on the host.
    step: how many steps it has made. blocks: how many blocks these were.
    own: of the last blocks, oldest first: seconds of a step without what was waited for other ranks, without checkpoints.
    phases: seconds of a step by names of `steps.PHASES`, the median of these blocks; they add up to a step.
    cpu: CPU seconds of a step, of the whole process. queued: seconds of a step in which the thread that trains could have
        run, but had no CPU. Both of these blocks' mean; None where nobody knows.
    """

    rank: int
    world: int
    pid: int
    host: str
    local: int
    step: int
    blocks: int
    own: tuple[float, ...]
    phases: dict[str, float]
    cpu: float | None = None
    queued: float | None = None

    @property
    def length(self) -> float:
        """Seconds of a step."""
        return sum(self.phases.values())

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Pace:
        """Reads what a file, or a message of another host, holds. Raises ValueError."""
        try:
            counts = {name: int(fields[name]) for name in ("rank", "world", "pid", "local", "step", "blocks")}
            own = tuple(float(seconds) for seconds in fields["own"])
            phases = {name: float(fields["phases"].get(name, 0.0)) for name in PHASES}
            host, cpu, queued = fields["host"], fields.get("cpu"), fields.get("queued")
            cpu, queued = (None if one is None else float(one) for one in (cpu, queued))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError("no pace of a rank") from error
        numbers = (*own, *phases.values(), cpu or 0.0, queued or 0.0)
        fits = (
            0 <= counts["rank"] < counts["world"] and 0 < len(own) <= KEPT and isinstance(host, str) and host.isprintable()
        )
        if not fits or not all(0 <= one < 1e9 for one in numbers):
            raise ValueError("no pace of a rank")
        return Pace(**counts, host=host, own=own, phases=phases, cpu=cpu, queued=queued)


def own_part(phases: Mapping[str, float], seconds: float) -> float:
    """Seconds that a rank itself needed, of the seconds of some steps with these phases."""
    return max(0.0, seconds - sum(phases.get(name, 0.0) for name in _WAITED))


def path_of(folder: str, host: str, rank: int) -> str:
    """The path of the rank's file.

    Args:
        folder: the profiler's.
    """
    return f"{folder}/{FOLDER}/{host.replace('/', '_')}.rank-{rank}.json"


def write_pace(folder: str, pace: Pace) -> None:
    """Replaces the rank's file. It is of no use after a power failure, so nothing waits for the disk. Raises OSError."""
    path = path_of(folder, pace.host, pace.rank)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    aside = f"{path}.{pace.pid}"
    with open(aside, "w") as file:
        file.write(json.dumps(pace.plain()))
    os.replace(aside, path)


def read_paces(folder: str, host: str) -> list[Pace]:
    """The latest of each rank of one host, by rank; files of any other form are passed over.

    Args:
        folder: the profiler's.
    """
    try:
        names = os.listdir(f"{folder}/{FOLDER}")
    except OSError:
        return []
    found = []
    for name in names:
        if name.startswith(f"{host.replace('/', '_')}.rank-") and name.endswith(".json"):
            try:
                found.append(Pace.of(read_object(f"{folder}/{FOLDER}/{name}", _MOST_BYTES)))
            except ValueError:
                continue
    return sorted(found, key=lambda one: one.rank)
