"""Fingerprints of data: a digest that tells whether two folders hold the same files, without reading them whole.

The format, of which this module is the source of truth. A digest is `METHOD:HEX`; digests of one method can be compared.
HEX is the first 32 hexadecimal digits of the SHA-256 of this text, one entry for each file, sorted by the bytes of names:

    trainshed-data-1 METHOD LF                      once, at the start
    SIZE SPACE CONTENT SPACE NAME NUL               for each file

SIZE is in bytes, decimal. NAME is the path below the folder, as the file system's bytes, parted by `/`. CONTENT is
`-`, or the first 32 hexadecimal digits of a SHA-256, by the METHOD:

    whole    of the file's bytes.
    sampled  of its places: 4,096 bytes at its beginning, 4,096 from SIZE // 2 on, its last 4,096; of all bytes where
             it has no more than these together. Of more than 1,024 files only those 1,024 have one whose names have the
             least CRC-32 (of equal ones, those whose names come first); all others have `-`.
    part     as `sampled`, of the first 100,000 files in the order of `machine.folders.walk`, where there are more.
    listed   `-`: for what cannot be read without fetching it.
    etags    of the ETag that a storage says of an object, without quotes: for objects that are not fetched.

`incomplete:HEX` is the digest of what could be read, where something could not, or changed meanwhile: it is equal to no
other method's. Times, owners and permissions do not count, nor do empty folders and what is not a file. Links count as
what they lead to.
"""

from __future__ import annotations

import os
import stat
import time

from trainshed.base.errors import TrainshedError, one_line, shorten, some
from trainshed.base.record import Record

from .folders import FILE, GONE, SPECIAL, FolderEntry, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

FORMAT = b"trainshed-data-1"
WHOLE, SAMPLED, PART, LISTED, INCOMPLETE = "whole", "sampled", "part", "listed", "incomplete"
ETAGS = "etags"
MOST_FILES = 100_000  # that `sampled` looks at
MOST_SAMPLED = 1024  # files that are opened
PLACE = 4096  # bytes
DIGITS = 32  # hexadecimal, of a digest
BLOCK = 1 << 20  # bytes, read at once
_FEW = 32  # files for whose places OpenSSL, which hashes faster, is not worth loading
MOST_NAMED = 3  # files that a note names
_EVERY = 1024  # files between two looks at the clock


class Fingerprint(Record):
    """The fingerprint of a folder's data.

    digest: as above; "" where there was no time for one.
    files, bytes: how many, and their sizes together.
    read: how many files' contents count, by their places or whole.
    notes: what does not count, in words.
    """

    digest: str = ""
    files: int = 0
    bytes: int = 0
    read: int = 0
    notes: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The part of the digest before the colon."""
        return self.digest.partition(":")[0]


class _Late(Exception):
    """The time is over."""


class _Clock:
    """seconds: from now on; None for as long as it takes."""

    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds
        self.seconds = seconds

    def check(self) -> None:
        """Raises `_Late` where the time is over."""
        if self.end is not None and time.monotonic() > self.end:
            raise _Late


def of_folder(folder: str, method: str = SAMPLED, seconds: float | None = None) -> Fingerprint:
    """The fingerprint of all files below a folder; of the file, where it is one.

    Args:
        method: `SAMPLED`, `WHOLE` or `LISTED`.
        seconds: that it may take; None for as long as it takes.
    """
    if os.path.isfile(folder):
        return of_files([(os.path.basename(folder), folder)], method, seconds)
    return _of(walk(folder), method, seconds)


def of_files(files: Iterable[tuple[str, str]], method: str = SAMPLED, seconds: float | None = None) -> Fingerprint:
    """The fingerprint of files that stand together without lying in one folder: (name, path) of each."""
    return _of((_found(name, path) for name, path in files), method, seconds)


def of_objects(objects: Iterable[tuple[str, int, str]]) -> Fingerprint:
    """The fingerprint of a storage's objects: (name, size in bytes, ETag) of each; "" for an ETag that was not said."""
    sha256 = _sha256(few=False)
    files, contents = [], {}
    for name, size, etag in objects:
        files.append(FolderEntry(name, name, FILE, size, ""))
        if tag := etag.strip('"'):
            contents[name] = sha256(os.fsencode(tag)).hexdigest()[:DIGITS]
    method = ETAGS if len(contents) == len(files) else LISTED
    digest = _digest(files, contents if method == ETAGS else {}, method, method)
    return Fingerprint(digest, len(files), sum(one.size for one in files))


def _sha256(few: bool) -> Callable[..., Any]:
    """few: whether there is little to hash."""
    if few:
        for module in ("_sha256", "_sha2"):  # up to Python 3.11, and since
            try:
                return __import__(module).sha256  # type: ignore[no-any-return]
            except ImportError:
                continue
    from hashlib import sha256

    return sha256


def _found(name: str, path: str) -> FolderEntry:
    try:
        info = os.stat(path)
    except OSError as error:
        return FolderEntry(path, name, GONE, 0, error.strerror or str(error))
    return FolderEntry(path, name, FILE if stat.S_ISREG(info.st_mode) else SPECIAL, info.st_size, "")


def _of(everything: Iterable[FolderEntry], method: str, seconds: float | None) -> Fingerprint:
    clock = _Clock(seconds)
    files: list[FolderEntry] = []
    other: list[str] = []
    problems: list[str] = []
    more = False
    try:
        for number, found in enumerate(everything):
            if number % _EVERY == 0:
                clock.check()
            if found.kind == FILE:
                if len(files) == MOST_FILES and method == SAMPLED:
                    more = True
                    break
                files.append(found)
            elif found.kind in (SPECIAL, GONE):
                other.append(found.name)
            else:
                problems.append(f"{found.name or found.path}: {found.reason}")
        method = PART if more else method
        contents = _contents(files, method, clock, problems)
    except _Late:
        late = f"no fingerprint: its {len(files):,} files or more cannot be looked at within {clock.seconds:g} s"
        return Fingerprint(files=len(files), bytes=sum(one.size for one in files), notes=(late,))
    except TrainshedError as error:  # links that never end
        return Fingerprint(files=len(files), bytes=sum(one.size for one in files), notes=(error.message,))
    notes = []
    if problems:
        notes.append(f"cannot be read: {_some(problems)}")
    if other:
        notes.append(f"does not count, not files: {_some(sorted(other))}")
    if more:
        notes.append(f"the first {MOST_FILES:,} files alone count")
    if len(contents) < len(files) and method != LISTED and not problems:
        notes.append(f"the contents of {len(contents):,} of {len(files):,} files count")
    digest = _digest(files, contents, method, INCOMPLETE if problems else method)
    return Fingerprint(digest, len(files), sum(one.size for one in files), len(contents), tuple(notes))


def _digest(files: list[FolderEntry], contents: dict[str, str], method: str, shown: str) -> str:
    """contents: of those files whose content counts, by name."""
    made = digest_of({one.name: (one.size, contents.get(one.name, "-")) for one in files}, method)
    return made if shown == method else f"{shown}:{made.partition(':')[2]}"


def digest_of(files: Mapping[str, tuple[int, str]], method: str) -> str:
    """The digest of files by their names: (SIZE, CONTENT) of each, as above."""
    everything = _sha256(len(files) <= _FEW)(b"%b %b\n" % (FORMAT, method.encode()))
    named = {os.fsencode(name): entry for name, entry in files.items()}
    names = sorted(named)
    for start in range(0, len(names), _EVERY):
        some_names = names[start : start + _EVERY]
        everything.update(b"".join(b"%d %b %b\0" % (named[name][0], named[name][1].encode(), name) for name in some_names))
    return f"{method}:{everything.hexdigest()[:DIGITS]}"


def _contents(files: list[FolderEntry], method: str, clock: _Clock, problems: list[str]) -> dict[str, str]:
    """CONTENT by name, of the files that have one; what cannot be read is a problem, and has none."""
    if method == LISTED:
        return {}
    whole = method == WHOLE
    sha256 = _sha256(not whole and len(files) <= _FEW)
    contents = {}
    for found in files if whole else _chosen(files):
        clock.check()
        try:
            contents[found.name] = _content(found, whole, sha256())
        except OSError as error:
            problems.append(f"{found.name}: {error.strerror}")
    return contents


def _chosen(files: list[FolderEntry]) -> Sequence[FolderEntry]:
    """The files whose contents are sampled."""
    if len(files) <= MOST_SAMPLED:
        return files
    import zlib

    ranked = [zlib.crc32(os.fsencode(one.name)) for one in files]
    last = sorted(ranked)[MOST_SAMPLED - 1]
    near = [(rank, os.fsencode(one.name), one.path) for rank, one in zip(ranked, files, strict=True) if rank <= last]
    chosen = {path for _, _, path in sorted(near)[:MOST_SAMPLED]}
    return [one for one in files if one.path in chosen]


def _content(found: FolderEntry, whole: bool, made: Any) -> str:
    """Of one file. made: an empty hash. Raises OSError, also where it changes meanwhile."""
    file = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe may have taken its place
    try:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(0, "is not a file any more")
        if before.st_size != found.size:
            raise OSError(0, "changed meanwhile")
        for start, end in [(0, found.size)] if whole else _places(found.size):
            while start < end:
                data = os.pread(file, min(BLOCK, end - start), start)
                if not data:
                    raise OSError(0, "changed meanwhile")
                made.update(data)
                start += len(data)
        after = os.fstat(file)
    finally:
        os.close(file)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise OSError(0, "changed meanwhile")
    return made.hexdigest()[:DIGITS]


def _places(size: int) -> list[tuple[int, int]]:
    """What is sampled of a file: (from, to) in bytes."""
    if size <= 3 * PLACE:
        return [(0, size)]
    return [(0, PLACE), (size // 2, size // 2 + PLACE), (size - PLACE, size)]


def _some(names: list[str]) -> str:
    return one_line(some([shorten(name, 200) for name in names], MOST_NAMED))


def to_plain(fingerprint: Fingerprint) -> dict[str, Any]:
    """As it stands in run records; notes where there are any."""
    plain = fingerprint.plain()
    return plain if plain["notes"] else {name: value for name, value in plain.items() if name != "notes"}
