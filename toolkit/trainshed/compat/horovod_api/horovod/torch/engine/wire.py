"""Messages between ranks and their coordinator: JSON objects, each after its length (4 bytes, big-endian)."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
LONGEST = 1 << 28  # bytes; the names and shapes of a million tensors are less


def packed(message: dict[str, Any]) -> bytes:
    """A message as bytes."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Takes bytes as they come, and gives whole messages.

    Args:
        longest: bytes of a message; longer ones are refused.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._bytes = bytearray()
        self.longest = longest

    def feed(self, received: bytes) -> list[dict[str, Any]]:
        """The messages that are whole with these bytes.

        Raises:
            ValueError: this is not one of our messages.
        """
        self._bytes += received
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > self.longest:
                raise ValueError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            message = json.loads(self._bytes[_LENGTH.size : end])
            if not isinstance(message, dict):
                raise ValueError("not a message")
            messages.append(message)
            del self._bytes[:end]
        return messages


def keep_alive(connection: socket.socket) -> None:
    """Small messages at once; a host that vanishes without a word is noticed within a minute."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
