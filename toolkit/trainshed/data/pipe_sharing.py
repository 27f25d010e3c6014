"""One process of a host reads a pipe and hands each rank's batches to that rank, through sockets of this machine."""

from __future__ import annotations

import os
import queue
import socket
import tempfile
import threading
import time
from contextlib import closing
from multiprocessing.connection import Client, Connection

from trainshed.base.errors import TrainshedError
from trainshed.base.record import Record

from . import user_cache as own_folder
from .formats.errors import DataError
from .pipe_epochs import Enough

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    # Reads an epoch until the event is set: of each round, rank of this host -> its batch.
    Parts = Callable[[threading.Event], Iterator[dict[int, Sequence[Any]]]]

_WAITING = 4  # batches
_COME_SECONDS = 600.0
_LOOK = 0.05  # seconds
_LAST_SECONDS = 2.0  # for the reader to end
_LONGEST = 100  # characters of a socket's path: the system takes 107


class Seat(Record):
    """The place of this process on its host. local_rank: 0 reads. job: tells jobs on one machine apart."""

    local_rank: int = 0
    local_world: int = 1
    job: str = ""


def batches(seat: Seat, parts: Parts) -> Iterator[Sequence[Any]]:
    """This process's batches of one epoch.

    Args:
        parts: reads the epoch; called in the process with local rank 0.

    Raises:
        DataError: the epoch cannot be read to its end, or the process that reads it is gone.
    """
    if seat.local_rank:
        yield from _received(seat)
        return
    if seat.local_world == 1:
        with closing(parts(threading.Event())) as rounds:  # type: ignore[type-var]
            try:
                for shares in rounds:
                    yield shares[0]
            except OSError as error:
                raise DataError(f"the pipe cannot be read: {error.strerror or error}") from error
        return
    found: queue.Queue[Any] = queue.Queue(_WAITING)
    over = threading.Event()
    reader = threading.Thread(target=_read, args=(seat, parts, found, over), name="trainshed-pipe", daemon=True)
    reader.start()
    try:
        while (batch := found.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        over.set()
        reader.join(_LAST_SECONDS)  # it may wait for a rank that takes nothing


def _read(seat: Seat, parts: Parts, found: queue.Queue[Any], over: threading.Event) -> None:
    others: dict[int, Connection] = {}
    try:
        others = _meet(seat, over)
        rounds = parts(over)
        try:
            for shares in rounds:
                for rank, connection in list(others.items()):
                    if not _send(connection, ("batch", list(shares[rank]))):
                        del others[rank]
                _put(found, shares[0], over)
        finally:
            rounds.close()  # type: ignore[attr-defined]
        last: Any = None
    except Enough:  # who goes on alone must not take this for the end
        last = DataError("local rank 0, which reads the pipe, has left the epoch", hint="end loops on all ranks alike")
    except TrainshedError as error:
        last = error
    except OSError as error:
        last = DataError(f"the pipe cannot be read: {error.strerror or error}")
    for connection in others.values():
        _send(connection, ("end", "") if last is None else ("error", last.message))
        connection.close()
    _put(found, last, over)


def _put(found: queue.Queue[Any], value: Any, over: threading.Event) -> None:
    while not over.is_set():
        try:
            found.put(value, timeout=_LOOK)
        except queue.Full:
            continue
        return


def _send(connection: Connection, message: tuple[str, Any]) -> bool:
    try:
        connection.send(message)
    except OSError:  # that rank has enough of this epoch
        return False
    return True


def _address(seat: Seat) -> str:
    usual = tempfile.gettempdir()
    place = f"{own_folder.name()}/pipe-{seat.job}"
    return f"{usual if len(usual) + len(place) < _LONGEST else '/tmp'}/{place}"


def _meet(seat: Seat, over: threading.Event) -> dict[int, Connection]:
    """The connections of the other ranks of this host, by local rank."""
    address = _address(seat)
    folder = os.path.dirname(address)
    if not own_folder.own_folder(os.path.dirname(folder)):
        raise DataError(
            f"{folder} cannot be used, or belongs to somebody else", hint="remove it, or set TMPDIR to another folder"
        )
    if os.path.lexists(address):
        os.unlink(address)
    found: dict[int, Connection] = {}
    until = time.monotonic() + _COME_SECONDS
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(seat.local_world)
        door.settimeout(_LOOK)
        while len(found) < seat.local_world - 1 and not over.is_set():
            try:
                connection = Connection(door.accept()[0].detach())
                found[connection.recv()] = connection
            except TimeoutError:
                if time.monotonic() > until:
                    missing = sorted({*range(1, seat.local_world)} - found.keys())
                    raise DataError(f"local ranks {missing} did not come for their part of the pipe") from None
            except EOFError:
                continue
    os.unlink(address)
    return found


def _received(seat: Seat) -> Iterator[Sequence[Any]]:
    until = time.monotonic() + _COME_SECONDS
    while True:
        try:
            connection = Client(_address(seat), "AF_UNIX")
            break
        except OSError:
            if time.monotonic() > until:
                raise DataError("the rank that reads the pipe (local rank 0) did not come") from None
            time.sleep(_LOOK)
    with connection:
        connection.send(seat.local_rank)
        while True:
            try:
                kind, value = connection.recv()
            except (EOFError, OSError):
                raise DataError("the rank that reads the pipe (local rank 0) is gone") from None
            if kind == "end":
                return
            if kind == "error":
                raise DataError(value)
            yield value
