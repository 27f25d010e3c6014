"""The thread of rank 0 that hears what all ranks announce, and tells all of them the same order."""

from __future__ import annotations

import hmac
import selectors
import socket
import sys
import threading
import time
from typing import Any

from .agreement import Agreement
from .wire import LONGEST, Unpacker, keep_alive, packed

_SEND_SECONDS = 60.0  # a rank that takes no message for so long is lost
_LOOK_SECONDS = 1.0
_LONGEST_GREETING = 1000  # bytes that somebody unknown may send
_GREETING_SECONDS = 10.0  # in which a connection has to prove that it is a rank's
_STRANGERS = 64  # connections without proof at once, besides as many as there are ranks: the oldest goes


class _Peer:
    """A connection, of a rank once it has said which."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.unpacker = Unpacker(_LONGEST_GREETING)
        self.rank = -1
        self.since = time.monotonic()


class Coordinator:
    """Serves the ranks until the last one has left.

    Args:
        listener: where ranks connect.
        token: what they prove themselves with.
        size: how many there are.
        agreement: made for as many.
        start_seconds: how long they may take to connect.
    """

    def __init__(self, listener: socket.socket, token: str, size: int, agreement: Agreement, start_seconds: float) -> None:
        self._listener, self._token, self._size, self._agreement = listener, token, size, agreement
        self._peers: dict[int, _Peer] = {}
        self._unknown: list[_Peer] = []  # that have not said which rank they are, oldest first
        self._gone: set[int] = set()
        self._leaving: set[int] = set()  # whose end is no failure
        self._others_gone = threading.Event()
        self._started = False
        self._until = time.monotonic() + start_seconds
        self._start_seconds = start_seconds
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._handed, self._ran = 0, 0  # batches that rank 0 was told, and has run
        self._wakes, self._woken = socket.socketpair()
        self._wakes.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="horovod-coordinator", daemon=True)
        self._thread.start()

    def wait_for_others(self) -> None:
        """Returns when all other ranks have left, if some may go on without rank 0."""
        if self._agreement.sets_without_first and self._thread.is_alive():
            self._others_gone.wait()

    def ran(self) -> None:
        """Rank 0, in whose process this is, has run a batch."""
        self._ran += 1
        try:
            self._wakes.send(b"r")
        except OSError:  # it is awake, or has ended
            pass

    def forget(self) -> None:
        """In a forked child: its copies of the connections would hide that this process has ended."""
        self._listener.close()
        for peer in self._peers.values():
            peer.connection.close()

    def _serve(self) -> None:
        try:
            looked = time.monotonic()
            while len(self._gone) < self._size:
                for key, _ in self._selector.select(_LOOK_SECONDS):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(1 << 12)
                    else:
                        self._hear(key.data)
                self._publish()
                now = time.monotonic()
                if now - looked >= _LOOK_SECONDS:
                    looked = now
                    self._look(now)
        finally:
            self._others_gone.set()
            self._selector.close()
            for peer in (*self._peers.values(), *self._unknown):
                peer.connection.close()
            for one in (self._listener, self._wakes, self._woken):
                one.close()

    def _look(self, now: float) -> None:
        for warning in self._agreement.look(now):
            print(f"[horovod] {warning}", file=sys.stderr, flush=True)
        self._publish()
        for peer in [peer for peer in self._unknown if now - peer.since >= _GREETING_SECONDS]:
            self._drop(peer)
        if not self._started and now > self._until:
            missing = [str(rank) for rank in range(self._size) if rank not in self._peers]
            self._end(f"ranks {', '.join(missing)} did not call hvd.init() within {self._start_seconds:.0f} s")

    def _end(self, why: str) -> None:
        """Tells all ranks that nothing goes on."""
        for rank in list(self._peers):
            self._send(rank, packed({"fatal": why}))
        self._gone.update(range(self._size))

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again
            return
        connection.settimeout(_SEND_SECONDS)
        keep_alive(connection)
        peer = _Peer(connection)
        self._unknown.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        if len(self._unknown) > self._size + _STRANGERS:
            self._drop(self._unknown[0])

    def _hear(self, peer: _Peer) -> None:
        try:
            received = peer.connection.recv(1 << 16)
        except OSError:
            received = b""
        try:
            messages = peer.unpacker.feed(received)
        except (ValueError, RecursionError):
            messages, received = [], b""  # whoever that is, it is none of our ranks
        for message in messages:
            self._take(peer, message)
        if not received:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        rank = peer.rank
        if rank < 0:
            if peer in self._unknown:  # else it was heard in the turn in which it was dropped
                self._unknown.remove(peer)
                self._selector.unregister(peer.connection)
                peer.connection.close()
            return
        self._selector.unregister(peer.connection)
        if rank in self._leaving:
            self._gone.add(rank)
            self._agreement.leave(rank, "has left: its script has ended, or called hvd.shutdown()")
            if len(self._gone - {0}) == self._size - 1:
                self._others_gone.set()
        elif rank not in self._gone:
            self._gone.add(rank)
            self._end(f"rank {rank} is gone: its process has ended, or its host is lost")

    def _take(self, peer: _Peer, message: dict[str, Any]) -> None:
        now = time.monotonic()
        if peer.rank < 0:
            self._greet(peer, message)
        elif "announce" in message:
            for request in message["announce"]:
                self._agreement.announce(peer.rank, request, now)
        elif "join" in message:
            self._agreement.join(peer.rank)
        elif "blocked" in message:
            on = message["blocked"]
            self._agreement.block(peer.rank, (int(on[0]), str(on[1])) if on else None)
        elif "bye" in message:
            self._leaving.add(peer.rank)

    def _greet(self, peer: _Peer, message: dict[str, Any]) -> None:
        token, rank = str(message.get("token", "")), message.get("rank")
        known = isinstance(rank, int) and 0 <= rank < self._size and rank not in self._peers
        if not known or not hmac.compare_digest(token.encode(), self._token.encode()):
            _hang_up(peer.connection)
            return
        peer.unpacker.longest = LONGEST
        peer.rank = rank  # type: ignore[assignment]
        self._unknown.remove(peer)
        self._peers[peer.rank] = peer
        if len(self._peers) == self._size:
            self._started = True
            self._selector.unregister(self._listener)
            self._listener.close()  # nobody else is to come
            for other in list(self._peers):
                self._send(other, packed({"start": True}))

    def _publish(self) -> None:
        """Tells what is agreed on. While rank 0 runs a batch it waits, so that what becomes ready meanwhile runs as one."""
        if self._handed > self._ran and 0 not in self._gone | self._leaving:
            return
        while news := self._agreement.take():  # one who cannot be told is lost, which makes more news
            for ranks, message in news:
                made = packed(message)
                self._handed += "batch" in message and 0 in ranks
                for rank in ranks:
                    self._send(rank, made)

    def _send(self, rank: int, message: bytes) -> None:
        peer = self._peers[rank]
        if rank in self._gone:
            return
        try:
            peer.connection.sendall(message)
        except OSError:
            _hang_up(peer.connection)  # which is then heard as its end


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
