"""This host's part of a hang report while it is being made: the stacks, and what flight recorders have written."""

from __future__ import annotations

import os
import time

from trainshed.base.files import read_bytes

from ..launchers.flight_recorder import ask_for_dump
from .hang_report import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..supervisor.watcher import Supervised
    from .hang_report import HostReport
    from .sample import Sample


class Contribution:
    """A part in the making.

    number: of host 0's request, 0 for a report of this host alone.
    samples: one for each rank, None until all have been looked at.
    """

    def __init__(self, number: int, run: Supervised) -> None:
        """Asks the flight recorders of all ranks to write down their collectives."""
        self.number = number
        self.samples: list[Sample] | None = None
        self._asked = time.time()  # seconds since the epoch, as the files' times
        self._dumps = {
            rank.spec.rank: dump_file(rank.spec.env, rank.spec.rank)
            for rank in run.ranks
            if rank.alive and rank.spec.rank is not None and ask_for_dump(rank.spec.env, rank.spec.rank)
        }

    def ready(self) -> bool:
        """Returns whether all ranks were looked at, and the flight recorders have written or had the time to."""
        if self.samples is None:
            return False
        if time.time() - self._asked > DUMP_SECONDS:
            return True
        # A file that is still being written cannot be read yet.
        return all(written_since(path, self._asked) and summary(path) for path in self._dumps.values() if path)

    def part(self, host: str, still: bool, gave_up: frozenset[int | None] = frozenset()) -> HostReport:
        """The part.

        Args:
            still: whether this host has said that its ranks stand still.
            gave_up: ranks in which a collective has timed out.
        """
        samples = self.samples or []
        moved = not still and any(sample.reading is not None for sample in samples)
        collectives = {rank: summary(path) for rank, path in self._dumps.items() if written_since(path, self._asked)}
        return part_of(host, samples, moved, len(self._dumps), collectives, gave_up)


# A dump is a pickle of dictionaries, lists, texts and numbers (format 2.x; the reader of torch is `torchfrtrace`, and
# torch/distributed/flight_recorder describes the fields). The reader refuses all else: a pickle could name any function.
LONGEST = 256 << 20  # bytes
DUMP_SECONDS = 8.0  # for ranks to write; the recorder reads its pipe every second
_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def dump_file(environ: Mapping[str, str], rank: int) -> str:
    """The file that a rank writes to; "" if it has no recorder."""
    prefix = next((environ[name] for name in _NAMES if environ.get(name)), "")
    return f"{prefix}{rank}" if prefix else ""


def written_since(path: str, moment: float) -> bool:
    """Returns whether a file was written to since a moment (seconds since the epoch)."""
    try:
        return os.stat(path).st_mtime >= moment
    except OSError:
        return False


def summary(path: str) -> str:
    """One line on the collectives of a rank; "" if the file is not a dump that can be read.

    `all_reduce number 12 of default_pg, [[1]] Float: started, not completed; 12 enqueued, 11 completed`
    """
    try:
        data = _load(read_bytes(path, LONGEST) or b"")
        return _words(data)
    except Exception:  # half written, of another version, not a dump at all: the stacks say enough
        return ""


def _load(data: bytes) -> Any:
    import io
    import pickle

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"a dump must not contain {module}.{name}")

    return Reader(io.BytesIO(data)).load()


def _words(data: dict[str, Any]) -> str:
    """The oldest collective that is not done, which is the one that the rank waits in; else the last one."""
    status = data.get("pg_status") or {}
    entries = [entry for entry in data.get("entries") or [] if not entry.get("is_p2p")]
    if not entries:
        return ""

    def pending(entry: dict[str, Any]) -> bool:
        done = (status.get(entry.get("pg_id")) or status.get(str(entry.get("pg_id"))) or {}).get("last_completed_collective")
        if entry.get("state") == "completed" or entry.get("retired"):
            return False
        return done is None or int(entry.get("collective_seq_id") or 0) > int(done)

    waiting = [entry for entry in entries if pending(entry)]
    entry = waiting[0] if waiting else entries[-1]
    name = str(entry.get("profiling_name") or "a collective").rpartition(":")[2]
    group = entry.get("process_group") or ("", "")
    of = f" of {group[1] or group[0]}" if any(group) else ""
    shape = f", {entry.get('input_sizes')} {' '.join(map(str, entry.get('input_dtypes') or []))}".rstrip(", []")
    state = f"{entry.get('state')}, not completed" if waiting else "completed; it is not in a collective now"
    counts = status.get(entry.get("pg_id")) or status.get(str(entry.get("pg_id"))) or {}
    counted = (
        f"; {counts['last_enqueued_collective']} enqueued, {counts['last_completed_collective']} completed"
        if {"last_enqueued_collective", "last_completed_collective"} <= set(counts)
        else ""
    )
    place = _place(entry.get("frames") or [])
    return f"{name} number {entry.get('collective_seq_id')}{of}{shape}: {state}{counted}{place}"


def _place(frames: list[dict[str, Any]]) -> str:
    """The innermost line outside torch that the collective was called from."""
    for frame in frames:
        file = str(frame.get("filename", ""))
        if "/torch/" not in file and file:
            return f"; called at {os.path.basename(file)}:{frame.get('line')}"
    return ""
