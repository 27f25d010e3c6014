"""One connection, to another host or to a process of this one: lines of JSON over a socket, never blocking."""

from __future__ import annotations

import errno
import json
import math
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .authentication import Seal

LONGEST = 1 << 20  # bytes of one message; a longer one is not ours
_DEEPEST = 32  # levels of a message
_LONGEST_NUMBER = 24  # characters


class Link:
    """A connected socket.

    seen: when anything last came through it, on the caller's clock.
    open: whether it can still be read.
    by_peer: whether it was closed because the other side's kernel said so, and neither by us nor for want of an answer.
    fd: its descriptor, also after it was closed.
    on_close: called before the socket is closed.
    """

    def __init__(self, connection: socket.socket, now: float, seal: Seal | None = None) -> None:
        """
        Args:
            seal: authenticates each message, None between processes of one host.
        """
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.fd = connection.fileno()
        self.seen = now
        self.open = True
        self.by_peer = False
        self._broken = 0  # the first failure's error number
        self.on_close: Callable[[], None] = lambda: None
        self._seal = seal
        self._in = bytearray()
        self._searched = 0  # bytes of `_in` that hold no end of a line
        self._out = b""

    @property
    def waiting(self) -> bool:
        """Tells whether there is something to send that the other side has not made room for."""
        return bool(self._out)

    def descriptor(self) -> tuple[int, int]:
        """The descriptor and what to poll it for."""
        return self.fd, select.POLLIN | (select.POLLOUT if self._out else 0)

    def send(self, message: dict[str, Any]) -> None:
        """Queues a message and writes what can be written."""
        self.send_encoded(encode(message))

    def send_encoded(self, body: bytes) -> None:
        """The same for one that goes to many."""
        self._out += (self._seal.close(body) if self._seal is not None else body) + b"\n"
        self.flush()

    def flush(self) -> None:
        """Writes what can be written."""
        while self._out and self.open:
            try:
                self._out = self._out[self.socket.send(self._out) :]
            except BlockingIOError:
                if len(self._out) > LONGEST:  # a peer that reads nothing
                    self._give_up(errno.ETIMEDOUT)
                return
            except OSError as error:
                self._give_up(error.errno or errno.EIO)

    def _give_up(self, number: int) -> None:
        """Stops sending. What the peer has sent is still read: `receive` closes the link after that."""
        self._out = b""
        self._broken = self._broken or number
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def receive(self, now: float) -> list[dict[str, Any]]:
        """The messages that have come; closes the link when the peer did, or when it sends anything else."""
        self.flush()  # the rest of a long message
        messages: list[dict[str, Any]] = []
        while self.open:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                self._broken = self._broken or error.errno or errno.EIO
                data = b""
            if not data:
                self.by_peer = self._broken in (0, errno.ECONNRESET, errno.EPIPE)
                self.close()
                break
            self.seen = now
            self._in += data
            if not self._take_lines(messages):
                self.close()
            elif len(data) < 1 << 16:  # most often all there is; the poll tells where it is not
                break
        return messages

    def _take_lines(self, messages: list[dict[str, Any]]) -> bool:
        """Takes the whole lines of what has come; False at the first that is not a message."""
        start = 0
        while (end := self._in.find(b"\n", max(start, self._searched))) >= 0:
            line = bytes(self._in[start:end])
            start = end + 1
            try:
                body = self._seal.open(line) if self._seal is not None else line
                messages.append(decode(body, strict=self._seal is not None))
            except ValueError:
                return False
        del self._in[:start]
        self._searched = len(self._in)
        return len(self._in) <= LONGEST

    def peer_is_there(self) -> bool:
        """Returns whether the other side has not closed the connection; reads nothing."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Closes the connection; safe to call again."""
        if self.open:
            self.open = False
            self.on_close()
            self.socket.close()


def encode(message: dict[str, Any]) -> bytes:
    """A message as one line of ASCII that `decode` takes: what it would refuse in a value of ours is replaced."""
    try:
        text = json.dumps(message, allow_nan=False)
    except ValueError:
        text = json.dumps(_scrubbed(message))
    if "\\ud" in text:  # half of a pair, perhaps
        text = json.dumps(_scrubbed(message))
    return text.encode()


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_scrubbed(name): _scrubbed(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decode(line: bytes, *, strict: bool = True) -> dict[str, Any]:
    """The message of a line, which has to be an object with finite numbers.

    Args:
        strict: whether it also may have no lone surrogates and at most 32 levels.

    Raises:
        ValueError: it is anything else.
    """
    try:
        message = _DECODER.decode(line.decode("utf-8"))
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(message, dict):
        raise ValueError("not an object")
    if strict:
        _check(message, _DEEPEST)
    return message


def _check(value: Any, levels: int) -> None:
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError, a ValueError, for lone surrogates
    elif isinstance(value, (dict, list)):
        if not levels:
            raise ValueError("too deep")
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            _check(item, levels - 1)


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("not a number of ours")
    return int(text)


def _broken(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not a number of ours")
    return number


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_broken, parse_constant=_refuse)
