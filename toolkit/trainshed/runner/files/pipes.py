"""Pipe mode: each epoch of a channel goes through a separate FIFO, `<channel>_<epoch>`, to the process that opens it.

The platform's rules: read to the end or close early, then look for the next epoch's. So the next FIFO is there before the
last one goes. Threads feed the FIFOs; they end when the hosts have.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import os
import random
import select
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING

from trainshed.base.errors import TrainshedError

from ..job.job import ChannelSpec
from .augmented import records
from .channel_files import files_of
from .run import Run

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK = 1 << 20  # bytes, read at once and asked of the kernel for the FIFO
LAST_SECONDS = 10.0  # that feeders may take to end
PAUSE = 0.02  # seconds between two looks for a reader, and for the end
MAGIC = 0xCED7230A  # of a RecordIO frame (dmlc-core, recordio.h)
LONGEST_PART = (1 << 29) - 4  # bytes; a longer record is split


Files = dict[str, list[str]]  # of each Pipe channel, by its path


class Feeders:
    """The feeders of a run's Pipe channels, from construction to `close`."""

    def __init__(self, run: Run, files: Files, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.over = threading.Event()
        self.problem = ""
        self.threads = [
            threading.Thread(target=self._run, name=f"pipe-{host.name}-{channel.name}", daemon=True,
                             args=(f"{host.folder}/input/data/{channel.name}", channel,
                                   files[run.data(host, channel)], self.over))
            for host in run.hosts
            for channel in run.job.channels_of(host.name)
            if channel.input_mode == "Pipe"
        ]  # fmt: skip
        for host in run.hosts:
            for channel in run.job.channels_of(host.name):
                if channel.input_mode == "Pipe":
                    _make(f"{host.folder}/input/data/{channel.name}_0")
        for thread in self.threads:
            thread.start()

    def _run(self, stem: str, channel: ChannelSpec, files: list[str], over: threading.Event) -> None:
        try:
            _feed(stem, channel, files, self.environ, over, self._note)
        except Exception as error:  # whatever it is: a reader that waits for the next epoch must not wait for ever
            self._note(channel, error)

    def _note(self, channel: ChannelSpec, error: Exception) -> None:
        self.problem = f"cannot feed the channel {channel.name}: {_reason(error)}"

    def trouble(self) -> str:
        """Why a channel cannot be fed, "" while all is well."""
        return self.problem

    def close(self) -> None:
        """Ends all feeders; their FIFOs go. One that waits for a disk that does not answer is left to itself."""
        self.over.set()
        end = time.monotonic() + LAST_SECONDS
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))


def survey(run: Run, say: Callable[[str], None]) -> Files:
    """The files of all Pipe channels, by the channel's path, sorted. Raises TrainshedError: a folder cannot be listed."""
    places = {
        run.data(host, one): one for host in run.hosts for one in run.job.channels_of(host.name) if one.input_mode == "Pipe"
    }
    return {place: sorted(path for _, path in files_of(channel, place, say)) for place, channel in places.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, TrainshedError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "a file does not fit into memory, as one record must"
    return str(error) or type(error).__name__


def _make(path: str) -> None:
    try:
        os.mkfifo(path)
        os.chmod(path, 0o666)  # under sudo the hosts run as another user than we
    except OSError as error:
        hint = "some file systems have no pipes: name another place with --output, or use input_mode File"
        raise TrainshedError(f"cannot make the pipe {path}: {error.strerror}", hint=hint) from error


def _feed(
    stem: str,
    channel: ChannelSpec,
    files: list[str],
    environ: Mapping[str, str],
    over: threading.Event,
    note: Callable[[ChannelSpec, Exception], None],
) -> None:
    epoch = 0
    while True:
        path = f"{stem}_{epoch}"
        fd = _open(path, over)
        if fd is None:
            os.unlink(path)
            return
        _make(f"{stem}_{epoch + 1}")
        try:
            for block in content(files, channel, epoch, environ):
                _write(fd, block, over)
        except BrokenPipeError:  # the reader has enough of this epoch
            pass
        except Exception as error:
            note(channel, error)
            over.wait()  # until the hosts are stopped: a pipe that closes is the end of an epoch for its reader
            return
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


def content(files: list[str], channel: ChannelSpec, epoch: int, environ: Mapping[str, str]) -> Iterator[bytes]:
    """Yields what goes through one epoch's FIFO, in blocks: whole files, unpacked and framed as the channel says."""
    if channel.augmented:
        for record in records(files[0], channel, epoch, environ):
            yield from frames(record)
        return
    order = list(files)
    if channel.shuffle_seed is not None:
        random.Random(f"{channel.shuffle_seed}-{epoch}").shuffle(order)
    for path in order:
        with opened(path) as raw, gzip.open(raw) if channel.compression == "Gzip" else raw as file:
            if channel.record_wrapper == "RecordIO":
                yield from frames(file.read())
            else:
                while block := file.read(BLOCK):
                    yield block


def opened(path: str) -> IO[bytes]:
    """A file, as far as it goes now: one that grows while it is fed (a log of this very job) would never end.

    Raises:
        OSError: it cannot be read, or is not a file any more.
    """
    file = io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    info = os.fstat(file.fileno())
    if not stat.S_ISREG(info.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is not a file any more", path)
    return io.BufferedReader(_Bounded(file, info.st_size), BLOCK)


class _Bounded(io.RawIOBase):
    """The first `left` bytes of a file."""

    def __init__(self, file: io.FileIO, left: int) -> None:
        self.file, self.left = file, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]
        view = memoryview(buffer)[: self.left]
        count = self.file.readinto(view) or 0
        self.left -= count
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def frames(record: bytes) -> Iterator[bytes]:
    """One record as RecordIO: magic, length (the part's place in the upper three bits), payload, padding to four bytes."""
    parts = [record[at : at + LONGEST_PART] for at in range(0, len(record), LONGEST_PART)] or [b""]
    for number, part in enumerate(parts):
        flag = 0 if len(parts) == 1 else 1 if number == 0 else 3 if number == len(parts) - 1 else 2
        yield struct.pack("<II", MAGIC, flag << 29 | len(part)) + part + bytes(-len(part) % 4)
