"""Reading and writing small files so that nobody ever sees half of one."""

from __future__ import annotations

import os


def write_atomic(path: str, data: str | bytes, *, mode: int = 0o644) -> None:
    """Writes `data` aside, fsyncs it and renames it to `path`; creates the folder. Raises OSError."""
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    aside = f"{folder}/.{os.path.basename(path)}.{os.getpid()}.tmp"
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if data:  # an empty file has nothing that could be lost
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(aside, path)
    except BaseException:
        remove(aside)
        raise


def remove(path: str) -> None:
    """Removes a file if it is there and may be removed; never raises."""
    try:
        os.unlink(path)
    except OSError:
        pass


def read_bytes(path: str, limit: int, *, cut: bool = False) -> bytes | None:
    """The file's bytes, or None where there is no such file.

    Raises:
        OSError: it cannot be read.
        ValueError: it has more than `limit` bytes; with `cut` the rest is left out instead.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if data is None:  # a FIFO nobody writes to
        return b""
    if len(data) > limit and not cut:
        raise ValueError(f"larger than {limit >> 20} MiB")
    return data[:limit]
