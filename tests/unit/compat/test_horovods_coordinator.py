"""The door of rank 0's coordinator: strangers keep no rank out."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from support.lazy import Lazy

agreements = Lazy("trainshed.compat.horovod_api.horovod.torch.engine.agreement")
coordinators = Lazy("trainshed.compat.horovod_api.horovod.torch.engine.coordinator")
wire = Lazy("trainshed.compat.horovod_api.horovod.torch.engine.wire")
pytestmark = [pytest.mark.torch, pytest.mark.safety]
GREETINGS = [b"", b"\0", b"\0\0\0\x05", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\x03\xe0" + b"[" * 992, b"\xff" * 9]


@pytest.fixture
def door() -> Iterator[Any]:
    """The address of a coordinator of two ranks."""
    listener = socket.create_server(("127.0.0.1", 0))
    agreement = agreements.Agreement(2, fusion_bytes=1, warn_seconds=0, fail_seconds=600)
    coordinators.Coordinator(listener, "word", 2, agreement, 600)
    yield listener.getsockname()


def joined(address: Any, rank: int) -> socket.socket:
    one = socket.create_connection(address, timeout=120)
    one.sendall(wire.packed({"rank": rank, "token": "word"}))
    return one


def test_ranks_start_while_strangers_hold_many_connections(door: Any) -> None:
    with contextlib.ExitStack() as held:
        for number in range(300):
            stranger = held.enter_context(socket.create_connection(door, timeout=120))
            with contextlib.suppress(OSError):
                stranger.sendall(GREETINGS[number % len(GREETINGS)])
        assert held.enter_context(socket.create_connection(door, timeout=120))
        ranks = [held.enter_context(joined(door, rank)) for rank in (0, 1)]
        assert [b'"start"' in one.recv(100) for one in ranks] == [True, True]
        with pytest.raises(OSError):
            while True:  # until the coordinator has closed its door
                socket.create_connection(door, timeout=120).close()
        for one in ranks:
            one.sendall(wire.packed({"bye": True}))
