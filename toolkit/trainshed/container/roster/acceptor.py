"""Host 0's door: listens, and lets in who proves the job's key; strangers get little room and little time.

Of a connection without proof nothing but two frames of fixed length is read. It has `PROOF_SECONDS`; of too many at a
time the oldest one of whoever has most of them goes, so that idle connections keep no host from joining.
"""

from __future__ import annotations

import errno
import socket

from trainshed.base.errors import ClusterError

from .authentication import CLAIM_BYTES, PREFACE_BYTES, Claim, Handshake, JobKey, NotOurs, Unproven, refusal
from .link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .poller import Poller

PROOF_SECONDS = 10.0  # that a connection may take for its proof
MOST_A_TURN = 256  # connections accepted in one turn, so that a flood of them does not stop the job's own
SPARE = 32  # connections without proof, beside one for each host
BACKLOG = 128  # connections that wait to be accepted, beside one for each host
MOST_SAID = 8  # messages to the user about strangers
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Stranger:
    """A connection without proof. since: when it was accepted."""

    def __init__(self, connection: socket.socket, address: str, handshake: Handshake, now: float) -> None:
        self.connection = connection
        self.address = address
        self.handshake = handshake
        self.since = now
        self.data = b""


class Door:
    """Listens for the hosts of one job. silent: whether nothing is said of strangers now."""

    def __init__(
        self,
        names: Sequence[str],
        key: JobKey,
        incarnation: bytes,
        poller: Poller,
        say: Callable[[str], None],
        enter: Callable[[Link, Claim, str, float], None],
    ) -> None:
        """
        Args:
            names: of the job's hosts, the first one's first.
            incarnation: of this process.
            enter: takes a connection with proof, the claim, the address that it comes from, and the time.
        """
        self.strangers: dict[Stranger, None] = {}  # the oldest first
        self.silent = False
        self._names = names
        self._key = key
        self._incarnation = incarnation
        self._poller = poller
        self._say = say
        self._enter = enter
        self._listeners: list[socket.socket] = []
        self._said = 0
        self._most = min(len(names) + SPARE, _descriptors(2 * len(names) + 4 * SPARE) // 2)

    @property
    def open(self) -> bool:
        """Tells whether it listens."""
        return bool(self._listeners)

    def listen(self, addresses: Sequence[str], port: int) -> None:
        """Listens on a port of these addresses of this host, "" for all.

        Raises:
            ClusterError: the port cannot be used.
        """
        try:
            for address in addresses:
                try:
                    self._listeners.append(_listener(address, port, backlog=len(self._names) + BACKLOG))
                except OSError as error:  # one that is not ready, or is switched off, is not needed beside others
                    if error.errno != errno.EADDRNOTAVAIL or (address == addresses[-1] and not self._listeners):
                        raise
        except OSError as error:
            self.close()
            raise ClusterError(
                f"port {port}, on which the other hosts find this one, cannot be used: {error.strerror}",
                hint="set trainshed_roster_port to a free one",
            ) from error
        for listener in self._listeners:
            listener.setblocking(False)
            self._poller.watch(listener.fileno(), lambda now, listener=listener: self._accept(listener, now))  # type: ignore[misc]

    def expire(self, now: float, away: float) -> None:
        """Closes connections that have had their time; `away` is how long this process was suspended of late."""
        for stranger in list(self.strangers):
            stranger.since = min(now, stranger.since + away)
            if now - stranger.since > PROOF_SECONDS:
                self._drop(stranger)

    def close(self) -> None:
        """Listens no more, and closes all connections without proof."""
        for stranger in list(self.strangers):
            self._drop(stranger)
        for listener in self._listeners:
            self._poller.forget(listener.fileno())
            listener.close()
        self._listeners = []

    # --- strangers ---

    def _accept(self, listener: socket.socket, now: float) -> None:
        for _ in range(MOST_A_TURN):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM and self.strangers:
                    self._drop(self._most_of_one())
                    continue
                return
            while len(self.strangers) >= self._most:
                self._drop(self._most_of_one())
            self._greet(Stranger(connection, str(address[0]).removeprefix("::ffff:"), Handshake(self._key), now))

    def _greet(self, stranger: Stranger) -> None:
        connection = stranger.connection
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.send(stranger.handshake.preface())
        except OSError:
            connection.close()
            return
        self.strangers[stranger] = None
        self._poller.watch(connection.fileno(), lambda now: self._read(stranger, now))

    def _most_of_one(self) -> Stranger:
        """The oldest connection of the address that has most of them."""
        counts: dict[str, int] = {}
        for stranger in self.strangers:
            counts[stranger.address] = counts.get(stranger.address, 0) + 1
        return max(self.strangers, key=lambda stranger: counts[stranger.address])  # the first of several: the oldest

    def _read(self, stranger: Stranger, now: float) -> None:
        wanted = PREFACE_BYTES if len(stranger.data) < PREFACE_BYTES else PREFACE_BYTES + CLAIM_BYTES
        try:
            data = stranger.connection.recv(wanted - len(stranger.data))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(stranger)
            return
        stranger.data += data
        if len(stranger.data) < wanted:
            return
        try:
            if wanted == PREFACE_BYTES:
                stranger.handshake.read_preface(stranger.data)
            else:
                self._admit(stranger, stranger.handshake.read_claim(stranger.data[PREFACE_BYTES:]), now)
        except NotOurs as error:
            if error.version:
                self._tell(f"a host at {stranger.address} runs another release of trainshed ({error}) and is refused")
            self._drop(stranger)
        except Unproven as error:
            name = self._names[error.rank] if 0 < error.rank < len(self._names) else "a host of this job"
            self._tell(
                f"a process at {stranger.address} calls itself {name}, but was not started for the same job (its token, "
                "program, hyperparameters, job name or hosts differ); it is refused"
            )
            self._drop(stranger, refusal())

    def _admit(self, stranger: Stranger, claim: Claim, now: float) -> None:
        del self.strangers[stranger]
        self._poller.forget(stranger.connection.fileno())
        try:
            stranger.connection.send(stranger.handshake.answer(self._incarnation))
        except OSError:
            stranger.connection.close()
            return
        self._enter(Link(stranger.connection, now, stranger.handshake.leader_seal()), claim, stranger.address, now)

    def _drop(self, stranger: Stranger, last: bytes = b"") -> None:
        del self.strangers[stranger]
        self._poller.forget(stranger.connection.fileno())
        try:
            if last:
                stranger.connection.send(last)
        except OSError:
            pass
        stranger.connection.close()

    def _tell(self, text: str) -> None:
        """Tells the user about a stranger; not about very many."""
        if self.silent:
            return
        self._said += 1
        if self._said <= MOST_SAID:
            self._say(text)
        elif self._said == MOST_SAID + 1:
            self._say("more strangers are refused without a word")


def _listener(address: str, port: int, backlog: int) -> socket.socket:
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=backlog)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=backlog)


def _descriptors(wanted: int) -> int:
    """How many descriptors this process may have, after raising the soft limit where `wanted` is more."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and soft < min(wanted, hard):
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
