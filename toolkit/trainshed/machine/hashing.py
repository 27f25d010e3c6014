"""Hashes of every file of a folder, for what must be recognized to the last byte: code, models."""

from __future__ import annotations

import os
import stat
from hashlib import sha256

from trainshed.base.errors import TrainshedError
from trainshed.base.record import Record

from .fingerprint import BLOCK, DIGITS, INCOMPLETE, MOST_NAMED, WHOLE, digest_of
from .folders import FILE, FolderEntry, walk

MOST_LISTED = 100_000  # files whose hashes are kept one by one


class HashedFile(Record):
    """One file: size in bytes, sha256 as 64 hexadecimal digits, and whether its owner may execute it."""

    size: int
    sha256: str
    executable: bool = False


class Hashes(Record):
    """The files of a folder by their path below it.

    digest: `whole:HEX` as in fingerprint.py, so that a channel hashed whole compares with it; `incomplete:HEX` where
        something could not be read.
    problems: `name: why`, of some files that could not be read.
    """

    digest: str
    files: dict[str, HashedFile]
    bytes: int
    problems: tuple[str, ...] = ()


def hashes_of(folder: str) -> Hashes:
    """The hashes of all files below a folder, of which all bytes are read. Links count as what they lead to."""
    found: dict[str, HashedFile] = {}
    problems: list[str] = []
    try:
        for one in walk(folder):
            if one.kind != FILE:
                problems.append(f"{one.name or one.path}: {one.reason or one.kind}")
                continue
            try:
                found[one.name] = hashed(one)
            except OSError as error:
                problems.append(f"{one.name}: {error.strerror}")
    except TrainshedError as error:  # links that never end
        problems.append(error.message)
    whole = digest_of({name: (file.size, file.sha256[:DIGITS]) for name, file in found.items()}, WHOLE)
    digest = whole if not problems else f"{INCOMPLETE}:{whole.partition(':')[2]}"
    return Hashes(digest, found, sum(one.size for one in found.values()), tuple(problems[:MOST_NAMED]))


def hashed(found: FolderEntry) -> HashedFile:
    """One file's hash. Raises OSError, also where it is no regular file."""
    file = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe may have taken its place
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(0, "is not a file any more")
        made, size = sha256(), 0
        while block := os.read(file, BLOCK):
            made.update(block)
            size += len(block)
    finally:
        os.close(file)
    return HashedFile(size, made.hexdigest(), bool(info.st_mode & stat.S_IXUSR))
