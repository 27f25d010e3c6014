"""Pipe mode: each epoch of a channel goes through a separate FIFO, `<channel>_<epoch>`, to the process that opens it.

The platform's rules: read to the end or close early, then look for the next epoch's. So the next FIFO is there before the
last one goes. Threads feed the FIFOs; they end when the hosts have.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import random
import select
import struct
import threading
import time
import zlib
from collections.abc import Iterator

from ..job.job import Channel
from .run import Run

BLOCK = 1 << 20  # bytes, read at once and asked of the kernel for the FIFO
PAUSE = 0.02  # seconds between two looks for a reader, and for the end
MAGIC = 0xCED7230A  # of a RecordIO frame (dmlc-core, recordio.h)
LONGEST_PART = (1 << 29) - 4  # bytes; a longer record is split


class Feeders:
    """The feeders of a run's Pipe channels, from construction to `close`."""

    def __init__(self, run: Run) -> None:
        self.over = threading.Event()
        self.problem = ""
        self.threads = [
            threading.Thread(target=self._run, name=f"pipe-{host.name}-{channel.name}", daemon=True,
                             args=(f"{host.folder}/input/data/{channel.name}", channel, files, self.over))
            for host in run.hosts
            for channel in run.job.channels
            if channel.input_mode == "Pipe"
            for files in [_files(run.data(host, channel))]
        ]  # fmt: skip
        for host in run.hosts:
            for channel in run.job.channels:
                if channel.input_mode == "Pipe":
                    _make(f"{host.folder}/input/data/{channel.name}_0")
        for thread in self.threads:
            thread.start()

    def _run(self, stem: str, channel: Channel, files: list[str], over: threading.Event) -> None:
        try:
            _feed(stem, channel, files, over)
        except (OSError, EOFError, zlib.error) as error:
            self.problem = f"cannot feed the channel {channel.name}: {error}"

    def trouble(self) -> str:
        """Why a channel cannot be fed, "" while all is well."""
        return self.problem

    def close(self) -> None:
        """Ends all feeders; their FIFOs go."""
        self.over.set()
        for thread in self.threads:
            thread.join()


def _files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    return sorted(f"{folder}/{name}" for folder, _, names in os.walk(path, followlinks=True) for name in names)


def _make(path: str) -> None:
    os.mkfifo(path)
    os.chmod(path, 0o666)  # under sudo the hosts run as another user than we


def _feed(stem: str, channel: Channel, files: list[str], over: threading.Event) -> None:
    epoch = 0
    while True:
        path = f"{stem}_{epoch}"
        fd = _open(path, over)
        if fd is None:
            os.unlink(path)
            return
        _make(f"{stem}_{epoch + 1}")
        try:
            for block in content(files, channel, epoch):
                _write(fd, block, over)
        except BrokenPipeError:  # the reader has enough of this epoch
            pass
        finally:
            os.close(fd)
            os.unlink(path)
        epoch += 1


def _open(path: str, over: threading.Event) -> int | None:
    """A descriptor of the FIFO once it has a reader; None when the hosts have ended."""
    while not over.is_set():
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            time.sleep(PAUSE)
            continue
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, BLOCK)  # type: ignore[attr-defined]
        except (OSError, AttributeError):  # more than this user may have
            pass
        return fd
    return None


def _write(fd: int, block: bytes, over: threading.Event) -> None:
    view = memoryview(block)
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while view:
        if over.is_set():
            raise BrokenPipeError
        if poll.poll(int(PAUSE * 1000)):
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:  # less room than the kernel wants to have at once
                time.sleep(PAUSE)


def content(files: list[str], channel: Channel, epoch: int) -> Iterator[bytes]:
    """What goes through one epoch's FIFO, in blocks: whole files, unpacked and framed as the channel says."""
    order = list(files)
    if channel.shuffle_seed is not None:
        random.Random(f"{channel.shuffle_seed}-{epoch}").shuffle(order)
    for path in order:
        with gzip.open(path) if channel.compression == "Gzip" else open(path, "rb") as file:
            if channel.record_wrapper == "RecordIO":
                yield from frames(file.read())
            else:
                while block := file.read(BLOCK):
                    yield block


def frames(record: bytes) -> Iterator[bytes]:
    """One record as RecordIO: magic, length (the part's place in the upper three bits), payload, padding to four bytes."""
    parts = [record[at : at + LONGEST_PART] for at in range(0, len(record), LONGEST_PART)] or [b""]
    for number, part in enumerate(parts):
        flag = 0 if len(parts) == 1 else 1 if number == 0 else 3 if number == len(parts) - 1 else 2
        yield struct.pack("<II", MAGIC, flag << 29 | len(part)) + part + bytes(-len(part) % 4)
