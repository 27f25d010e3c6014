"""The writing thread's work on one snapshot: it writes this rank's files; on the leading rank it also publishes.

Ranks of one storage communicate by small files in the aside folder: collectives run in the loop's thread only.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time

from trainshed.base.files import read_bytes, write_atomic
from trainshed.base.record import Record

from . import folder as folders
from . import storage_check as ground
from .blocks import BLOCK, write_durable
from .manifest import FileEntry, Manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ranks import Ranks
    from .remote import Remote

POLL = 0.01  # seconds between looks for the notes of the other ranks
ASK = 0.5  # seconds between questions to those that could not leave a note
PATIENCE = 900.0  # seconds that the leading rank waits for a note
ORPHAN = 20.0  # seconds that it waits after its own loop has ended
SPARE = 64 << 20  # bytes to leave free on the disk


class SaveError(Exception):
    """A checkpoint was not made; the message says why, for the user."""


class CopyError(Exception):
    """A checkpoint was made, but not copied to the storage of `copy_to`; the message says why."""


class Content(Record):
    """One file to write: `size` bytes from `data` (page-aligned where it is large)."""

    name: str
    data: memoryview
    size: int


class Retention(Record):
    """Which checkpoints stay: the newest `last`, every one at a multiple of `every` steps, the best `best` by `metric`."""

    last: int = 3
    every: int = 0
    metric: str = ""
    mode: str = "min"
    best: int = 1


def write_part(
    folder: str,
    ranks: Ranks,
    contents: list[Content],
    manifest: Manifest,
    needed: int,
    keep: Retention,
    remote: Remote | None = None,
) -> str:
    """Writes this rank's files; on the leading rank also waits for the others, publishes, and uploads.

    Args:
        manifest: as it is to be, without files.
        needed: bytes that all ranks of this storage together will write.
        remote: where a copy goes.

    Returns:
        The published checkpoint's path, "" on the other ranks.

    Raises:
        SaveError, OSError: nothing was published; what was there before is untouched.
        CopyError: it was not uploaded.
    """
    if ranks.leads:  # no rank writes now: what a failed attempt of this run has left can be deleted
        folders.sweep(folder, of_run=ranks.token, keep=manifest.save)
    name = folders.STEPS.name_of(manifest.step)
    aside = folders.aside_of(folder, name, manifest.save, manifest.part)
    try:
        try:
            folders.make_aside(folder, name, manifest.save, manifest.part)
            check_space(folder, needed)
            entries = write_files(aside, contents)
        except BaseException as error:
            if not ranks.leads:
                report(aside, ranks, manifest.save, [], _why(error) or type(error).__name__)
            raise
        if not ranks.leads:
            report(aside, ranks, manifest.save, entries, "")
            return ""
        for rank in ranks.peers[1:]:
            entries += await_entries(aside, ranks, manifest.save, rank)
        for rank in ranks.peers[1:]:
            os.unlink(note_of(aside, rank))
        final = folders.publish(f"{folder}/{name}", aside, manifest.replace(files=tuple(entries)))
    except BaseException:
        if ranks.leads:
            folders.remove_tree(aside)
        raise
    best = folders.best_steps(folder, keep.metric, keep.mode, keep.best) if keep.metric else []
    gone = folders.prune(folder, keep_last=keep.last, keep_every=keep.every, best=best)
    if remote is not None:
        try:
            remote.push(final)
            if keep.metric:  # only the checkpoints here know which one is best
                for step in gone:
                    remote.drop(folders.STEPS.name_of(step))
            else:
                remote.prune(manifest.step, keep_last=keep.last, keep_every=keep.every)
        except OSError as error:
            raise CopyError(_why(error)) from error
    return final


def write_files(aside: str, contents: list[Content]) -> list[FileEntry]:
    """Writes one rank's files durably into the aside folder; returns their manifest entries. Raises OSError."""
    return [
        FileEntry(
            name=content.name,
            size=content.size,
            block=BLOCK,
            crc32=tuple(write_durable(f"{aside}/{content.name}", content.data, content.size)),
        )
        for content in contents
    ]


def check_space(folder: str, needed: int) -> None:
    """Raises SaveError if the disk does not have `needed` bytes free and a little more."""
    if problem := ground.shortage(folder, needed, SPARE):
        raise SaveError(problem)


def note_of(aside: str, rank: int) -> str:
    """The file in which a rank says what it has written."""
    return f"{aside}/rank{rank}.note"


def report(aside: str, ranks: Ranks, save: str, entries: list[FileEntry], problem: str) -> None:
    """Leaves the leading rank a note: what was written, or why not; where no file can be left, past the storage."""
    try:
        if not os.path.isdir(aside):  # a note in a folder that nobody has made would look like a save
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), aside)
        note = {"files": [entry.plain() for entry in entries], "problem": problem}
        write_atomic(note_of(aside, ranks.rank), json.dumps(note))
    except OSError as error:
        ranks.tell(f"{save}/{ranks.rank}", problem or _why(error))
        if not problem:
            raise


def await_entries(aside: str, ranks: Ranks, save: str, rank: int) -> list[FileEntry]:
    """Waits for the note of another rank; returns the entries of its files."""
    began = asked = time.monotonic()
    loop = threading.main_thread()
    while True:
        if ranks.stale:
            raise SaveError("a rank was lost")
        data = read_bytes(note_of(aside, rank), 1 << 24)
        if data is not None:
            break
        if time.monotonic() - asked > ASK:
            asked = time.monotonic()
            if problem := ranks.told(f"{save}/{rank}"):
                raise SaveError(f"rank {rank}: {problem}")
        if time.monotonic() - began > (PATIENCE if loop.is_alive() else ORPHAN):
            raise SaveError(f"rank {rank} did not write its share within {time.monotonic() - began:.0f} s")
        time.sleep(POLL)
    note = json.loads(data)
    if note["problem"]:
        raise SaveError(f"rank {rank}: {note['problem']}")
    return [FileEntry(**{**entry, "crc32": tuple(entry["crc32"])}) for entry in note["files"]]


def _why(error: BaseException) -> str:
    if isinstance(error, OSError):
        place = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "the checkpoint"
        full = ground.full(error, os.path.dirname(place)) if error.errno in ground.FULL else error.strerror
        return f"{place}: {full}"
    return str(error)


def explain(error: BaseException) -> str:
    """Why a checkpoint was not made, on one line."""
    return _why(error)
