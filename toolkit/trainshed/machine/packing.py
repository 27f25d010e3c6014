"""Packs files into a .tar.gz that appears only when it is whole: written, read back and compared, fsynced, renamed.

What a script leaves is told apart from what can be packed: pipes, sockets and devices are no results, and a file that
cannot be read, vanishes or changes meanwhile is named. Members carry no user of this machine.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
import tarfile
import zlib
from functools import partial

from trainshed.base.files import remove, sync_folder
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import IO, Any

    Progress = Callable[[int, int], None]  # files and bytes that are packed

LEVEL = 1  # of gzip: model weights hardly shrink, and higher levels take ten times as long
BLOCK = 1 << 20  # bytes
CHANGED = "changed while it was packed"
_SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class PackedEntry(Record):
    """A thing below a folder that is packed.

    Attributes:
        path: where it is. name: what it is called in the archive.
        special: what it is, in words, where it is neither a file nor a link.
        state: size, time of the last change and inode: what differs after a change.
    """

    path: str
    name: str
    special: str = ""
    link: bool = False
    size: int = 0
    state: tuple[int, int, int] = (0, 0, 0)


class Packed(Record):
    """The content of a packed archive.

    Attributes:
        files: files and links in it. size: their bytes before compression.
        sha256: of the archive, hexadecimal.
        lost: `name: why` of each file that is not in it as it was.
    """

    files: int
    size: int
    sha256: str
    lost: tuple[str, ...] = ()


def listed(folder: str) -> tuple[list[PackedEntry], list[str]]:
    """(everything below a folder but the folders, by name; `name: why` of what cannot be listed). Links are not followed."""
    found: list[PackedEntry] = []
    problems: list[str] = []
    queue = [""]
    while queue:
        prefix = queue.pop()
        try:
            with os.scandir(f"{folder}/{prefix}") as entries:
                names = sorted((entry.name for entry in entries), reverse=True)
        except OSError as error:
            if prefix or not isinstance(error, FileNotFoundError):
                problems.append(f"{prefix.rstrip('/') or folder}: {error.strerror}")
            continue
        for name in names:
            path = f"{folder}/{prefix}{name}"
            try:
                status = os.lstat(path)
            except OSError as error:
                problems.append(f"{prefix}{name}: {error.strerror}")
                continue
            if stat.S_ISDIR(status.st_mode):
                queue.append(f"{prefix}{name}/")
                continue
            found.append(
                PackedEntry(
                    path=path,
                    name=f"{prefix}{name}",
                    special=_SPECIAL.get(stat.S_IFMT(status.st_mode), ""),
                    link=stat.S_ISLNK(status.st_mode),
                    size=status.st_size if stat.S_ISREG(status.st_mode) else 0,
                    state=_state(status),
                )
            )
    return sorted(found, key=lambda entry: entry.name), problems


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def pack(archive: str, entries: Iterable[PackedEntry], progress: Progress = lambda files, size: None) -> Packed:
    """Writes files and links to `archive`; special files are left out.

    Raises:
        OSError: the archive cannot be written, or does not read back as it was written. Nothing is left of it then,
            and of an older one of that name neither.
    """
    aside = f"{archive}.part"
    members: list[tuple[str, int]] = []
    lost: list[str] = []
    try:
        remove(archive)
        with open(aside, "wb") as file:
            hashed = _Hashed(file)
            with tarfile.open(  # type: ignore[call-overload]
                fileobj=hashed, mode="w:gz", compresslevel=LEVEL, copybufsize=BLOCK
            ) as tar:
                packed = 0
                for entry in entries:
                    if entry.special:
                        continue
                    try:
                        info, content = _opened(tar, entry)
                    except OSError as error:
                        lost.append(f"{entry.name}: {error.strerror}")
                        continue
                    with content:
                        content.progress = partial(progress, len(members))
                        content.before_it = packed
                        tar.addfile(info, content if info.isreg() else None)
                        if problem := content.problem():
                            lost.append(f"{entry.name}: {problem}")
                    members.append((info.name, info.size))
                    packed += info.size
                    tar.members = []  # type: ignore[attr-defined]  # kept for nobody: 200,000 of them are 200 MB
                    progress(len(members), packed)
            file.flush()
            os.fsync(file.fileno())
        _read_back(aside, members, hashed.hash.hexdigest())
        os.replace(aside, archive)
        sync_folder(os.path.dirname(archive))
    except BaseException:
        remove(aside)
        raise
    return Packed(len(members), packed, hashed.hash.hexdigest(), tuple(lost))


def _opened(tar: tarfile.TarFile, entry: PackedEntry) -> tuple[tarfile.TarInfo, _Content]:
    """A member's header, without this machine's users, and its content. Raises OSError."""
    if entry.link:
        info, content = tar.gettarinfo(entry.path, entry.name), _Content(-1)
    else:
        content = _Content(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
        with open(os.dup(content.fd), "rb") as file:
            info = tar.gettarinfo(arcname=entry.name, fileobj=file)
    if info is None or not (info.isreg() or info.issym() or info.islnk()):
        content.close()
        raise OSError(errno.ESTALE, CHANGED)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info, content


class _Content:
    """A file's bytes, exactly as many as its header says: what is missing is filled up with zeros, and noted."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.taken = 0
        self.short = ""
        self.before = os.fstat(fd) if fd >= 0 else None
        self.progress: Callable[[int], None] = lambda size: None
        self.before_it = 0  # bytes packed before this file

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and not self.short:
            try:
                block = os.read(self.fd, size - len(data))
            except OSError as error:
                self.short = error.strerror or str(error)
                break
            data += block
            if not block:
                self.short = CHANGED
        self.taken += size
        self.progress(self.before_it + self.taken)
        return data + bytes(size - len(data))

    def problem(self) -> str:
        """Why the member is not the file, "" if it is."""
        if self.short or self.before is None:
            return self.short
        after = os.fstat(self.fd)
        return CHANGED if _state(after) != _state(self.before) else ""

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> _Content:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Hashed:
    """A file that is written, or read, from its beginning to its end, and hashed on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.hash: Any = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self.file.write(data)

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.hash.update(data)
        return data

    def flush(self) -> None:
        self.file.flush()


def _read_back(archive: str, members: Sequence[tuple[str, int]], sha256: str) -> None:
    """Compares names and sizes of members, and all bytes by their checksum. Raises OSError where they differ."""
    damaged = OSError(errno.EIO, "what was written reads back differently", archive)
    with open(archive, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # from the disk, not from memory, where it is there
        hashed = _Hashed(file)
        try:
            # Not tarfile's own "r|gz", which unpacks what it has read in one go: a megabyte may hold a gigabyte of zeros.
            with (
                gzip.GzipFile(fileobj=hashed, mode="rb") as plain,  # type: ignore[arg-type]
                tarfile.open(fileobj=plain, mode="r|", bufsize=BLOCK) as tar,  # type: ignore[call-overload]
            ):
                for name, size in members:
                    info = tar.next()
                    if info is None or (info.name, info.size) != (name, size):
                        raise damaged
                    tar.members = []  # type: ignore[attr-defined]
                if tar.next() is not None:
                    raise damaged
        except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, ValueError) as error:
            raise damaged from error
        while hashed.read(BLOCK):
            pass
        if hashed.hash.hexdigest() != sha256:
            raise damaged


def changes(before: Iterable[PackedEntry], after: Iterable[PackedEntry]) -> list[str]:
    """`name: why` of what is different in the second of two lists: something still writes."""
    first = {entry.name: entry.state for entry in before}
    second = {entry.name: entry.state for entry in after}
    gone = [f"{name}: vanished while it was packed" for name in first if name not in second]
    return gone + [f"{name}: {CHANGED}" for name, state in second.items() if first.get(name) != state]
