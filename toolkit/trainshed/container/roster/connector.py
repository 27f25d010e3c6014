"""A member's way to host 0: connects, proves the job's key, again whenever the connection breaks; never blocks."""

from __future__ import annotations

import errno
import select
import socket

from .authentication import ANSWER_BYTES, PREFACE_BYTES, Handshake, JobKey, NotOurs, Unproven
from .link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONNECT_SECONDS = 2.0  # for one attempt; the kernel repeats itself at ever longer intervals, so a new one is sooner through
PROOF_SECONDS = 5.0  # for host 0 to prove itself on a connection
RETRY_SECONDS = 0.25  # between two attempts


class Dialer:
    """Attempts to connect, one after the other.

    failing: why host 0 cannot be talked to, as the last attempts that reached something say; "" where none has.
    refused: whether nobody listens on the port, as the machine of host 0 said at the last attempt.
    failing_since: since when they all say so.
    leader: the incarnation of host 0 with which the job has started, b"" before that.
    """

    def __init__(self, address: tuple[str, int], host0: str, rank: int, key: JobKey, incarnation: bytes) -> None:
        """
        Args:
            address: name and port of host 0.
            host0: what the job calls it.
            rank, incarnation: of this host.
        """
        self.address = address
        self.failing = ""
        self.failing_since = 0.0
        self.refused = False
        self.leader = b""
        self._host0 = host0
        self._rank = rank
        self._key = key
        self._incarnation = incarnation
        self._known: tuple[int, Any] | None = None  # address family and address of host 0; a name server may fail later
        self._connection: socket.socket | None = None
        self._handshake = Handshake(key)
        self._connected = False
        self._claimed = False
        self._data = b""
        self._until = 0.0
        self._next = 0.0

    def descriptors(self) -> dict[int, int]:
        """The descriptors to poll while an attempt is under way."""
        if self._connection is None:
            return {}
        return {self._connection.fileno(): select.POLLIN if self._connected else select.POLLOUT}

    def hurry(self) -> None:
        """Lets the next attempt begin at once."""
        self._next = 0.0

    def turn(self, now: float) -> tuple[Link, bytes] | None:
        """Takes the next step; a connection on which both sides have proven the key, and host 0's incarnation."""
        if self._connection is None:
            if now < self._next:
                return None
            self._start(now)
        elif now > self._until:
            self._give_up(now)
        if self._connection is None:
            return None
        try:
            return self._advance(self._connection, now)
        except NotOurs as error:
            if error.version:
                why = f"{self._host0} runs another release of trainshed ({error}): start all hosts from the same image"
            else:
                why = f"what answers on port {self.address[1]} of {self._host0} is {error}: another program uses that port"
            self._fail(why, now)
        except Unproven:
            self._fail(
                f"this host and {self._host0} were not started for the same job: "
                "their token, program, hyperparameters, job name or hosts differ",
                now,
            )
        except OSError as error:
            self.failing = ""
            self.refused = error.errno == errno.ECONNREFUSED
            self._give_up(now)
        return None

    def close(self) -> None:
        """Gives up the attempt that is under way."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _give_up(self, now: float) -> None:
        self.close()
        self._next = now + RETRY_SECONDS

    def _fail(self, why: str, now: float) -> None:
        if why != self.failing:
            self.failing_since = now
        self.failing = why
        self._give_up(now)

    def _start(self, now: float) -> None:
        self._handshake = Handshake(self._key)
        self._connected = self._claimed = False
        self._data = b""
        self._next = now + RETRY_SECONDS
        try:
            family, address = self._known or self._look_up()
            self._connection = socket.socket(family, socket.SOCK_STREAM)
            self._until = now + CONNECT_SECONDS
            self._connection.setblocking(False)
            self._connection.connect(address)
        except BlockingIOError:
            pass
        except (OSError, UnicodeError) as error:
            self.refused = isinstance(error, ConnectionRefusedError)
            self.close()

    def _look_up(self) -> tuple[int, Any]:
        """Address family and address of host 0. Raises OSError."""
        family, _, _, _, address = socket.getaddrinfo(*self.address, proto=socket.IPPROTO_TCP)[0]
        return family, address

    def _advance(self, connection: socket.socket, now: float) -> tuple[Link, bytes] | None:
        if not self._connected:
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            if not poll.poll(0):
                return None
            if number := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, "cannot connect")
            self._connected = True
            self._until = now + PROOF_SECONDS
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.send(self._handshake.preface())
        wanted = PREFACE_BYTES + (ANSWER_BYTES if self._claimed else 0)
        while len(self._data) < wanted:
            try:
                data = connection.recv(wanted - len(self._data))
            except BlockingIOError:
                return None
            if not data:
                raise NotOurs if self._data and not self._claimed else ConnectionResetError(104, "closed")
            self._data += data
            if not self._claimed and len(self._data) >= PREFACE_BYTES:
                self._handshake.read_preface(self._data)
                self._claimed = True
                connection.send(self._handshake.claim(self._rank, self._incarnation, self.leader))
                wanted = PREFACE_BYTES + ANSWER_BYTES
        incarnation = self._handshake.read_answer(self._data[PREFACE_BYTES:])
        self._known = connection.family, connection.getpeername()
        self._connection = None
        self.failing = ""
        self.refused = False
        return Link(connection, now, self._handshake.member_seal()), incarnation
