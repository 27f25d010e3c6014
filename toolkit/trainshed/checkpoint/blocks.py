"""Writes buffers to disk past the page cache, and computes checksums block by block; does not know tensors.

`O_DIRECT` from page-aligned memory writes at the disk's speed with almost no CPU time, and leaves the page cache to the
data loader. A buffered write needs a copy of everything and stalls in fsync (`benchmarks/checkpoint.py` measures both).
Where the file system refuses O_DIRECT, blocks are written through the cache and their write-back is started at once.
"""

from __future__ import annotations

import ctypes
import os
import threading
import zlib
from collections.abc import Callable

BLOCK = 16 << 20  # bytes that share one checksum
ALIGN = 4096  # O_DIRECT wants file offsets, sizes and addresses in multiples of this
WRITERS = 3  # threads that write, hence blocks that the disk has at a time
SUMMERS = max(1, min(4, (os.cpu_count() or 1) // 2))  # threads that compute checksums meanwhile, 2 to 3 GB/s each
READERS = 3  # threads that read and compute checksums: some wait for the disk while others compute
_SYNC_FILE_RANGE_WRITE = 2  # <fcntl.h>


def padded(size: int) -> int:
    """`size` rounded up to the alignment of direct writes."""
    return -(-size // ALIGN) * ALIGN


def write_durable(path: str, buffer: memoryview, size: int) -> list[int]:
    """Writes the first `size` bytes of `buffer` to a new file, fsyncs it, returns the CRC-32 of each block.

    Args:
        buffer: at least `padded(size)` bytes; page-aligned memory is written directly.

    Raises:
        FileExistsError: the file is there already: nothing is ever overwritten.
        OSError: the disk is full or failing.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(path, flags, 0o644)
    try:
        direct = _set_direct(fd, True)
        whole = padded(size) if direct else size
        if size:
            _reserve(fd, whole)
        sums: list[int] = []
        # In a separate thread: the disk must have WRITERS blocks to work on at all times.
        summing = threading.Thread(target=lambda: sums.extend(checksums(buffer[:size], SUMMERS)))
        summing.start()
        try:
            _each_block(whole, lambda at, end: _write_block(fd, buffer, at, end, direct), WRITERS)
            if direct and whole != size:
                os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            summing.join()
        return sums
    finally:
        os.close(fd)


def checksums_of(fd: int, size: int) -> list[int]:
    """The checksums of an open file of that many bytes, block by block; [] of an empty one."""
    import mmap

    if not size:
        return []
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as mapped:
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        view = memoryview(mapped)
        try:
            return checksums(view)
        finally:
            view.release()


def checksums(data: memoryview, threads: int = READERS) -> list[int]:
    """The CRC-32 of each block of `data`."""
    return _each_block(len(data), lambda at, end: zlib.crc32(data[at:end]), threads)


def _write_block(fd: int, buffer: memoryview, at: int, end: int, direct: bool) -> int:
    done = at
    while done < end:
        try:
            done += os.pwrite(fd, buffer[done:end], done)
        except OSError as error:
            if error.errno != 22 or not direct:  # EINVAL: this file system takes O_DIRECT at open but not for writes
                raise
            _set_direct(fd, False)
            direct = False
    if not direct:
        _start_write_back(fd, at, end - at)
    return end - at


def _each_block(size: int, work: Callable[[int, int], int], threads: int = WRITERS) -> list[int]:
    """Runs `work(start, end)` for every block on a few threads; returns the results in order, raises the first error."""
    starts = range(0, size, BLOCK)
    results = [0] * len(starts)
    errors: list[BaseException] = []
    pending = iter(enumerate(starts))
    lock = threading.Lock()

    def run() -> None:
        while not errors:
            with lock:
                number, at = next(pending, (-1, 0))
            if number < 0:
                return
            try:
                results[number] = work(at, min(at + BLOCK, size))
            except BaseException as error:
                errors.append(error)

    helpers = [threading.Thread(target=run, daemon=True) for _ in range(min(threads, len(starts)) - 1)]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return results


def _reserve(fd: int, size: int) -> None:
    """Allocates the space in one piece: a full disk is found now, and direct writes need not extend the file."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (22, 95, 38):  # EINVAL, EOPNOTSUPP, ENOSYS: this file system cannot
            raise


def _set_direct(fd: int, on: bool) -> bool:
    """Turns O_DIRECT on or off; False where the file system does not take it."""
    import fcntl

    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return False
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
    except OSError:
        return False
    return True


def _start_write_back(fd: int, at: int, size: int) -> None:
    """Asks the kernel to begin writing a range that was just filled; a hint, so failures do not matter."""
    try:
        ctypes.CDLL(None).sync_file_range(fd, ctypes.c_int64(at), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)
    except (AttributeError, OSError):
        pass


def sync_folder(path: str) -> None:
    """Makes the folder's entries durable (a rename is only certain after this)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError:  # some network file systems have nothing to sync here
        pass
    finally:
        os.close(fd)
