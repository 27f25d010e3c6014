"""One connection, to another host or to a process of this one: lines of JSON over a socket, never blocking."""

from __future__ import annotations

import json
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 1 << 20  # bytes of one message; a longer one is not ours


class Link:
    """A connected socket.

    seen: when anything last came through it, on the caller's clock.
    open: whether it can still be read.
    """

    def __init__(self, connection: socket.socket, now: float) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.seen = now
        self.open = True
        self._in = b""
        self._out = b""

    def descriptor(self) -> tuple[int, int]:
        """The descriptor and what to poll it for."""
        return self.socket.fileno(), select.POLLIN | (select.POLLOUT if self._out else 0)

    def send(self, message: dict[str, Any]) -> None:
        """Queues a message and writes what can be written."""
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Writes what can be written."""
        while self._out and self.open:
            try:
                self._out = self._out[self.socket.send(self._out) :]
            except BlockingIOError:
                if len(self._out) > LONGEST:  # a peer that reads nothing
                    self._give_up()
                return
            except OSError:
                self._give_up()

    def _give_up(self) -> None:
        """Stops sending. What the peer has sent is still read: `receive` closes the link after that."""
        self._out = b""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def receive(self, now: float) -> list[dict[str, Any]]:
        """The messages that have come; closes the link when the peer did, or when it sends anything else."""
        self.flush()  # the rest of a long message
        while self.open:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            self.seen = now
            self._in += data
            if len(self._in) > LONGEST:
                self._in = b""
                self.close()
        *lines, self._in = self._in.split(b"\n")
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                self.close()
                break
            messages.append(message)
        return messages

    def close(self) -> None:
        """Closes the connection; safe to call again."""
        if self.open:
            self.open = False
            self.socket.close()
