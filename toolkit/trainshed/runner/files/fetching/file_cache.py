"""Files that were fetched, kept for other runs: one folder for each content, known by URL, ETag and size.

    ~/.cache/trainshed/channels/<digest>/
        about.json    what it is; with the time of the file's last change, by which a write to it is seen
        part          what has come so far, of a file that is being fetched
        whole         the file; its folder's time is that of its last use

Who fetches, takes or removes an entry locks its folder (flock(2)), so two runs fetch one file once, and nothing is removed
that is being used. The kernel forgets the lock of a process that was killed; the next one goes on with its part.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.base.errors import TrainshedError
from trainshed.base.process_age import boot_id
from trainshed.base.units import bytes_of
from trainshed.contract.wire.variables import CHANNEL_CACHE, CHANNEL_CACHE_SIZE

from . import etag
from .items import Item

ABOUT, PART, WHOLE = "about.json", "part", "whole"
PAUSE = 0.1  # seconds between two looks at a lock
SMALL = 1 << 20  # bytes; such a file is compared with its checksum when it is taken, and not written through to the disk
OF_DISK = 10  # the cache gets this part of its disk, if nobody says otherwise
_KEY = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class CachedFile:
    """One content of the cache. used: seconds since the epoch; whole: or a part of it."""

    path: str
    size: int
    used: float
    whole: bool

    @property
    def url(self) -> str:
        """The URL that it comes from; "" where that is not known any more."""
        try:
            return str(_about(self.path).get("url", ""))
        except (OSError, ValueError):
            return ""


class Cache:
    """A cache in a folder.

    Args:
        limit: bytes that stay between runs.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def obstacle(self) -> str:
        """Why nothing can be kept there, "" if it can: a home that is read-only, a disk that knows no locks."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            probe = f"{self.folder}/.probe-{os.getpid()}-{threading.get_ident()}"
            fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(fd)
                os.unlink(probe)
        except OSError as error:
            return f"{error.filename or self.folder}: {error.strerror}"
        return ""

    def keeps(self, item: Item) -> bool:
        """Returns whether it is known which content an item is."""
        return bool(item.etag) and 0 <= item.size <= self.limit

    @contextlib.contextmanager
    def entry(self, item: Item, over: threading.Event) -> Iterator[str]:
        """The item's folder, locked for the block. Raises OSError, and `InterruptedError` where `over` is set meanwhile."""
        path = f"{self.folder}/{key_of(item)}"
        fd = -1
        while fd < 0:
            os.makedirs(path, mode=0o700, exist_ok=True)
            fd = _locked(path, over)
        try:
            yield path
        finally:
            os.close(fd)

    def has(self, item: Item) -> bool:
        """Returns whether it is there, at a glance."""
        return os.path.exists(f"{self.folder}/{key_of(item)}/{WHOLE}")

    def entries(self) -> list[CachedFile]:
        """All of them, the one first that was used longest ago."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for one in os.scandir(self.folder):
                if _KEY.fullmatch(one.name) and one.is_dir(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        found.append(_entry(one.path))
        return sorted(found, key=lambda entry: (entry.used, entry.path))

    def remove(self, entry: CachedFile) -> bool:
        """Removes one that nobody uses now; whether it is gone. Raises OSError."""
        fd = _lock(entry.path)
        if fd is None:
            return not os.path.exists(entry.path)
        try:
            shutil.rmtree(entry.path)
        except FileNotFoundError:
            pass
        finally:
            os.close(fd)
        return True

    def prune(self, limit: int | None = None, *, room: int = 0) -> tuple[int, int]:
        """Removes what was used longest ago until the rest fits; (entries, bytes) that went.

        Args:
            limit: bytes that may stay; None for the cache's own. room: bytes that the disk shall have free, if that can be.
        """
        entries = self.entries()
        held = sum(one.size for one in entries)
        limit = self.limit if limit is None else limit
        count = gone = 0
        for one in entries:
            if held <= limit and (not room or free_bytes(self.folder) >= room):
                break
            with contextlib.suppress(OSError):
                if self.remove(one):
                    held, gone, count = held - one.size, gone + one.size, count + 1
        return count, gone


def find_cache(environ: Mapping[str, str]) -> Cache | None:
    """This user's cache; None where they want none.

    Raises:
        TrainshedError: its size is not one.
    """
    given = environ.get(CHANNEL_CACHE, "")
    if given == "off":
        return None
    folder = os.path.abspath(given) if given else _default_folder(environ)
    if text := environ.get(CHANNEL_CACHE_SIZE, ""):
        return Cache(folder, limit_of(text, CHANNEL_CACHE_SIZE))
    return Cache(folder, _disk(folder).total // OF_DISK)


def limit_of(text: str, what: str) -> int:
    """Bytes that a person names. Raises TrainshedError."""
    found = bytes_of(text)
    if found is None:
        raise TrainshedError(f"{what} = {text}: is not a size", hint="write it like 50g or 500m")
    return found


def key_of(item: Item) -> str:
    """The name of an item's entry."""
    return hashlib.sha256(f"{item.url}\n{item.etag}\n{item.size}".encode("utf-8", "surrogateescape")).hexdigest()[:40]


def is_as_it_was(path: str, item: Item) -> bool:
    """Returns whether an entry has its file, and nobody has written to it. Small files are read for that."""
    whole = f"{path}/{WHOLE}"
    try:
        info = os.stat(whole)
        if info.st_size != item.size or info.st_mtime_ns != _about(path).get("mtime_ns"):
            return False
        return not (info.st_size <= SMALL and etag.is_md5(item.etag)) or _compared(path, item)
    except (OSError, ValueError):
        return False


def finish(path: str, item: Item, *, is_md5: bool) -> None:
    """Makes an entry's part its file. Raises OSError."""
    part = f"{path}/{PART}"
    small = item.size <= SMALL and is_md5
    fd = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not small:
            os.fsync(fd)
        os.fchmod(fd, 0o444)
        mtime = os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)
    about = {"url": item.url, "etag": item.etag, "size": item.size, "mtime_ns": mtime, "md5": is_md5}
    with open(f"{path}/{ABOUT}", "w") as file:
        json.dump(about, file)
    os.rename(part, f"{path}/{WHOLE}")


def begin(path: str, item: Item) -> None:
    """Readies an entry for its part: what was damaged goes. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}/{WHOLE}")
    boot = boot_id()
    try:
        as_written = _about(path).get("boot") == boot
    except (OSError, ValueError):
        as_written = False
    if not as_written:  # the power may have gone, and not every ETag is a checksum that would tell
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}/{PART}")
    with open(f"{path}/{ABOUT}", "w") as file:
        json.dump({"url": item.url, "etag": item.etag, "size": item.size, "boot": boot}, file)


def free_bytes(folder: str) -> int:
    """Returns what the disk has left for this user."""
    return _disk(folder).free


def _compared(path: str, item: Item) -> bool:
    if not _about(path).get("md5"):  # an ETag that only looks like one
        return True
    return etag.etag_of(f"{path}/{WHOLE}", [item.size], item.etag) == item.etag


def _about(path: str) -> dict[str, Any]:
    with open(f"{path}/{ABOUT}", "rb") as file:
        found = json.load(file)
    return found if isinstance(found, dict) else {}


def _entry(path: str) -> CachedFile:
    size, whole = 0, False
    for name in (WHOLE, PART):
        with contextlib.suppress(OSError):
            size, whole = size + os.stat(f"{path}/{name}").st_size, whole or name == WHOLE
    return CachedFile(path, size, os.stat(path).st_mtime, whole)


def _locked(path: str, over: threading.Event) -> int:
    """A descriptor that holds the folder's lock; -1 where the folder went meanwhile."""
    while (fd := _lock(path)) is None:
        if over.wait(PAUSE):
            raise InterruptedError
        if not os.path.isdir(path):
            return -1
    return fd


def _lock(path: str) -> int | None:
    """None where another has it, or the folder is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _default_folder(environ: Mapping[str, str]) -> str:
    place = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(place):
        place = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return f"{place}/trainshed/channels"


def _disk(folder: str) -> Any:
    """Bytes of the disk that a folder is on, or will be."""
    while not os.path.isdir(folder) and folder != "/":
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder)


def touch(path: str) -> None:
    """Notes that an entry was used. Never raises."""
    with contextlib.suppress(OSError):
        os.utime(path, (time.time(), time.time()))
