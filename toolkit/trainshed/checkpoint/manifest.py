"""The manifest: what a checkpoint consists of, with sizes and checksums; the last file written, the first one read.

One manifest a *part*. A part is what lies on one storage: the whole checkpoint where all hosts share a folder, one
host's share where each has its own disk. The file is one JSON object on the first line and the CRC-32 of that line on
the second, so that damage to the manifest itself is noticed as well.
"""

from __future__ import annotations

import json
import os
import time
import zlib

from trainshed.base.errors import one_line
from trainshed.base.files import read_bytes, write_atomic
from trainshed.base.record import Record

from .blocks import checksums_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .ranks import Ranks

FORMAT = 1
SUFFIX = ".manifest"
MOST = 1 << 62  # no count in a manifest is as large
LATEST = 1e11  # seconds since the epoch that a year of four digits has
_LIMIT = 256 << 20  # bytes; a larger file is not a manifest


class Damaged(Exception):
    """A checkpoint must not be used; the message says why, for the user, in one line whatever the names in it hold."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class FileEntry(Record):
    """One data file: `size` in bytes, `crc32` of each block of `blocks.BLOCK` bytes."""

    name: str
    size: int
    crc32: tuple[int, ...]
    block: int


class Manifest(Record):
    """One part of a checkpoint.

    save: token of this one save; parts belong together only if it is the same.
    part, parts: index of this storage and number of storages.
    complete: whether this part alone holds every tensor (replicated state on per-host disks).
    world_size: ranks that wrote it.
    ranks: the ranks whose files are in this part.
    created: seconds since the epoch.
    run: how long the job has trained and how often it was interrupted (see `policy.History`).
    metrics: what the user passed to the step, for keep-best.
    """

    step: int
    save: str
    part: int
    parts: int
    complete: bool
    world_size: int
    ranks: tuple[int, ...]
    host: str
    created: float
    files: tuple[FileEntry, ...]
    reason: str = ""
    run: dict[str, Any] = {}  # noqa: RUF012
    metrics: dict[str, float] = {}  # noqa: RUF012

    @property
    def size(self) -> int:
        """Bytes of all data files."""
        return sum(file.size for file in self.files)


def of_ranks(
    ranks: Ranks,
    *,
    step: int,
    save: str,
    complete: bool,
    files: tuple[FileEntry, ...] = (),
    reason: str = "",
    run: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Manifest:
    """The manifest of the part that these ranks write now; the arguments are fields of `Manifest`."""
    return Manifest(
        step=step,
        save=save,
        part=ranks.part,
        parts=ranks.parts,
        complete=complete,
        world_size=ranks.world_size,
        ranks=ranks.peers,
        host=ranks.host,
        created=time.time(),
        files=files,
        reason=reason,
        run=dict(run or {}),
        metrics={name: float(value) for name, value in (metrics or {}).items()},
    )


def name_of(host: str, part: int) -> str:
    """The manifest's file name; the host is in it, since the parts of several hosts may come to lie in one folder."""
    return f"{host}.part{part}{SUFFIX}"


def write(folder: str, manifest: Manifest) -> None:
    """Writes a part's manifest durably. Raises OSError."""
    write_atomic(f"{folder}/{name_of(manifest.host, manifest.part)}", dump(manifest))


def dump(manifest: Manifest) -> bytes:
    """The bytes of a part's manifest; `parse` reads them."""
    line = json.dumps({"format": FORMAT, **manifest.plain()}, separators=(",", ":"), sort_keys=True).encode()
    return line + b"\n%08x\n" % zlib.crc32(line)


def read(path: str) -> Manifest:
    """The manifest in a file.

    Raises:
        Damaged: it is missing, damaged, or of another format.
    """
    name = os.path.basename(path)
    try:
        data = read_bytes(path, _LIMIT)
    except (OSError, ValueError) as error:
        raise Damaged(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if data is None:
        raise Damaged(f"{name} is missing")
    return parse(data, name)


def parse(data: bytes, name: str) -> Manifest:
    """The manifest in the bytes of a file of this name.

    Raises:
        Damaged: they are damaged or are not a manifest.
    """
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % zlib.crc32(line):
        raise Damaged(f"{name} is damaged (its checksum is wrong)")
    try:
        value = json.loads(line)
        if value.pop("format") != FORMAT:
            raise Damaged(f"{name} has a format that this version does not know")
        files = tuple(FileEntry(**{**file, "crc32": tuple(file["crc32"])}) for file in value.pop("files"))
        manifest = Manifest(**{**value, "ranks": tuple(value["ranks"])}, files=files)
        if not _is_in_shape(manifest):
            raise ValueError
        for file in files:
            os.fsencode(file.name)  # ValueError for what no file can be called
        outside = [file.name for file in files if not _is_inside(file.name)]
        if outside:
            raise Damaged(f"{name}: its file {outside[0]!r} would be written outside its folder")
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Damaged(f"{name} is not a manifest of a checkpoint") from error


def _is_in_shape(manifest: Manifest) -> bool:
    """Whether every field is of its kind: a right checksum says only that a forger can count."""
    numbers = (manifest.step, manifest.part, manifest.parts, manifest.world_size, *manifest.ranks)
    texts = (manifest.save, manifest.host, manifest.reason)
    return (
        all(type(value) is int and 0 <= value < MOST for value in numbers)
        and all(isinstance(value, str) for value in texts)
        and isinstance(manifest.complete, bool)
        and isinstance(manifest.created, (int, float))
        and 0 <= manifest.created < LATEST
        and isinstance(manifest.run, dict)
        and isinstance(manifest.metrics, dict)
        and all(
            isinstance(value, (int, float)) and abs(value) < MOST for value in manifest.metrics.values() if value == value
        )
        and all(map(_is_file, manifest.files))
    )


def _is_file(file: FileEntry) -> bool:
    counts = (file.size, file.block, *file.crc32)
    return all(type(value) is int and 0 <= value < MOST for value in counts) and isinstance(file.name, str)


def _is_inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and ".." not in name.split("/") and "\0" not in name


def check_file(folder: str, entry: FileEntry) -> None:
    """Reads one data file in full and compares it with its entry.

    Raises:
        Damaged: it is missing, has another size, or a block's checksum is wrong.
    """
    path = f"{folder}/{entry.name}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Damaged(f"{entry.name} is missing" if error.errno == 2 else f"{entry.name}: {error.strerror}") from error
    try:
        size = os.fstat(fd).st_size
        if size != entry.size:
            raise Damaged(f"{entry.name} has {size} bytes instead of {entry.size}")
        if not size:
            return
        sums = checksums_of(fd, size)
    finally:
        os.close(fd)
    wrong = next((n for n, (a, b) in enumerate(zip(sums, entry.crc32, strict=False)) if a != b), None)
    if wrong is not None or len(sums) != len(entry.crc32):
        at = (wrong or 0) * entry.block
        raise Damaged(f"{entry.name} is damaged between bytes {at} and {min(at + entry.block, size)}")
