"""Hosts of one job in one process: the roster's real code and real sockets, a clock of our own, and a network that breaks.

Every host takes its turns from a loop, in random order, with random steps of the clock, so that half a minute passes in
a few milliseconds. Between a member and host 0 lies a `Cable`, which can be cut, be slow, change bytes, or send old
ones again.
"""

from __future__ import annotations

import random
import select
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from support.free_ports import free_ports
from trainshed.base.errors import ClusterError
from trainshed.container.roster.authentication import JobKey
from trainshed.container.roster.leader import Leader
from trainshed.container.roster.member import Member
from trainshed.container.roster.messages import FailedElsewhere, Report
from trainshed.container.roster.restart_barrier import Decision, Rest
from trainshed.container.roster.restarting_leader import RestartingLeader
from trainshed.container.roster.restarting_member import RestartingMember
from trainshed.contract.outcome import Failure

KEY = JobKey(b"k" * 32, named=True)
GRACE = 1.0
JOIN_SECONDS = 60.0


class Clock:
    """Seconds that pass when we say so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire:
    """One connection through a cable: both sockets, and the bytes on their way to each."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.ends = (near, far)
        self.waiting = [b"", b""]  # to far, to near
        self.ended = [False, False]

    def close(self) -> None:
        for end in self.ends:
            end.close()


class Cable:
    """What a member connects through. cut: nothing passes, and nobody is told. most: bytes that pass in a turn."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listener.setblocking(False)
        self.port = int(self.listener.getsockname()[1])
        self.wires: list[Wire] = []
        self.cut = False
        self.most = 1 << 20
        self.spoil = 0  # how many of the next pieces have a byte changed
        self.heard: list[bytes] = []  # what members have sent, for one who listens

    def turn(self) -> None:
        """Carries what there is to carry."""
        if self.cut:
            return
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                break
            far = socket.socket()
            try:
                far.connect(("127.0.0.1", self.target))
            except OSError:
                near.close()
                far.close()
                continue
            for end in (near, far):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the kernel must not wait by its own clock
            self.wires.append(Wire(near, far))
        for wire in list(self.wires):
            if not all([self._carry(wire, 0), self._carry(wire, 1)]):
                wire.close()
                self.wires.remove(wire)

    def _carry(self, wire: Wire, way: int) -> bool:
        """One direction of one connection; False when it is over."""
        source, target = wire.ends[way], wire.ends[1 - way]
        try:
            while not wire.ended[way]:
                data = source.recv(1 << 16)
                wire.ended[way] = not data
                wire.waiting[way] += data
        except BlockingIOError:
            pass
        except OSError:
            wire.ended[way] = True
        piece = wire.waiting[way][: self.most]
        if piece and self.spoil:
            self.spoil -= 1
            place = len(piece) // 2
            piece = piece[:place] + bytes([piece[place] ^ 1]) + piece[place + 1 :]
        try:
            sent = target.send(piece) if piece else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if way == 0 and sent:
            self.heard.append(piece[:sent])
        wire.waiting[way] = wire.waiting[way][len(piece[:sent]) :]
        return not (wire.ended[way] and not wire.waiting[way])

    def reset(self) -> None:
        """Breaks all connections, as a router that has forgotten them."""
        for wire in self.wires:
            wire.close()
        self.wires = []

    def close(self) -> None:
        self.reset()
        self.listener.close()


class Node:
    """One host's `train` from its start to its end.

    ready_at: until when it installs what its program needs; before that it may be stopped at `stopped_at`.
    fate: how its ranks end by themselves: `done`, `failed`, or `interrupted` by a stop signal; and `ends_at`, when.
        `cannot start` is a host whose ranks do not even begin.
    fates: the same of further attempts, with the seconds that each lasts; those that are not named end well.
    attempt: which one runs, from 0. signalled: whether a stop signal came after its ranks had ended.
    state: `joining`, `running`, `resting`, `leaving`, `over`; `dead` where it was killed.
    graceful: whether its ranks end well when they are asked to stop. signal: what interrupts it.
    verdict: what it says of the job's end, None for success; only when it is over. stopped: what stopped it early.
    """

    def __init__(self, network: Network, rank: int, key: JobKey = KEY) -> None:
        self.network, self.rank, self.name = network, rank, network.names[rank]
        self.state = "joining"
        self.ready_at, self.stopped_at = 0.0, float("inf")
        self.fate, self.ends_at = "done", network.ends_at
        self.fates: dict[int, tuple[str, float]] = {}
        self.attempt, self.signalled = 0, False
        self.verdict: Failure | None = None
        self.stopped = ""
        self.graceful, self.signal = False, signal.SIGTERM
        self.said: list[str] = []
        self.paused_until = 0.0
        self.ran = False
        of_leader, of_member = (RestartingLeader, RestartingMember) if network.restarts else (Leader, Member)
        if rank == 0:
            self.roster: Leader | Member = of_leader(
                network.names, network.port, key, GRACE, self.said.append, addresses=("127.0.0.1",), clock=network.clock
            )
        else:
            address = ("127.0.0.1", network.cables[rank].port)
            self.roster = of_member(network.names, rank, address, key, GRACE, self.said.append, clock=network.clock)
        self._preparing = self.roster.preparing()
        self._life = self._live()

    def turn(self) -> None:
        """What it does between two sleeps."""
        self.roster.exchange()
        try:
            next(self._life)
        except StopIteration:
            self.state = "over"

    def _live(self) -> Generator[float, None, None]:
        try:
            while self.network.clock() < self.ready_at:
                self._preparing.look()
                if self.network.clock() >= self.stopped_at:
                    yield from self._stopped_early()
                    return
                yield 0.1
            yield from self.roster.joining(JOIN_SECONDS)
        except FailedElsewhere as error:
            self.verdict = error.failure
            if self.roster.doom is not None and not self.roster.over:
                yield from self.roster.failing_before_start(error.failure, JOIN_SECONDS)
            return
        except ClusterError as error:
            self.roster.close()
            self.verdict = Failure(kind="ClusterError", summary=error.message, exit_code=69, host=self.name)
            return
        while True:
            self.network.begins(self)
            while not self.roster.stopping and self.network.clock() < self.ends_at:
                yield 0.1
            report = self._report()
            self.state = "resting" if self.network.restarts else "leaving"
            if report.state == "failed":
                self.roster.failed("rank 0 ended with 1")
            elif report.state == "interrupted":
                self.roster.interrupted(f"stopped by {self.signal.name}", self.signal)
            if not self.network.restarts or self.fate == "cannot start":
                break
            report = report.replace(again=report.state != "interrupted")
            decision = yield from self.roster.resting(report, self.network.decide)
            if not decision.again:
                break
            if self.signalled:
                failure = Failure("Interrupted", f"{self.name} was stopped", 143, host=self.name)
                report = Report(state="interrupted", failure=failure)
                break
            self.attempt += 1
            self.fate, seconds = self.fates.get(self.attempt, ("done", 15.0))
            self.ends_at = self.network.clock() + seconds
        self.state = "leaving"
        verdict = yield from self.roster.leaving(report)
        self.verdict, self.stopped = verdict.failure, verdict.stopped

    def _stopped_early(self) -> Generator[float, None, None]:
        self.verdict = Failure(kind="Interrupted", summary=f"{self.name} was stopped", exit_code=143, host=self.name)
        yield from self.roster.failing_before_start(self.verdict, JOIN_SECONDS)

    def _report(self) -> Report:
        if self.graceful and (self.roster.stopping or self.fate == "interrupted"):
            early = self.roster.stopping or f"{self.name}: stopped by {self.signal.name}"
            return Report(state="stopped" if self.roster.stopping else "interrupted", early=early)
        if self.roster.stopping:
            failure = Failure(
                kind="Stopped", summary=f"rank {self.rank} was killed by SIGTERM", exit_code=143, host=self.name
            )
            return Report(state="stopped", failure=failure)
        if self.fate == "cannot start":
            return Report(state="failed", failure=Failure("LaunchError", f"{self.name}: no such file", 127, host=self.name))
        if self.fate == "failed":
            return Report(state="failed", failure=Failure("UserError", f"{self.name}: bad batch", 1, host=self.name))
        if self.fate == "interrupted":
            failure = Failure(
                kind="Interrupted", summary=f"{self.name} was stopped", exit_code=128 + self.signal, host=self.name
            )
            return Report(state="interrupted", failure=failure)
        return Report(state="done")

    def stop(self) -> None:
        """A stop signal, whatever the host does now."""
        if self.state == "running":
            self.fate, self.ends_at = "interrupted", self.network.clock()
        elif self.state == "resting" and not self.signalled:
            self.signalled = True
            self.roster.interrupted(f"stopped by {self.signal.name}", self.signal)

    def kill(self, *, silently: bool = False) -> None:
        """Ends it at once; `silently`, so that nobody is told (its machine is off)."""
        if self.state in ("over", "dead"):
            return
        self.state = "dead"
        if silently:
            return
        if isinstance(self.roster, Leader):
            self.roster.close()
            return
        if self.roster.link is not None:
            self.roster.link.close()
        self.roster.dialer.close()


class Steps:
    """Lets hosts take turns. A subclass has a clock, nodes, and a step of all of them."""

    def until(self, done: Callable[[], bool], limit: float = 300.0) -> None:
        """Steps until `done` says so; fails after `limit` seconds of our clock."""
        end = self.clock.now + limit
        while not done():
            assert self.clock.now < end, f"still {[(node.name, node.state) for node in self.nodes]} after {limit} s"
            self.step()


class Network(Steps):
    """The hosts of a job, the cables between them, and the clock.

    restarts: how often the job's ranks may be started again. decided: what host 0 has decided.
    early: attempts that have begun while an earlier one was running on another host.
    """

    def __init__(self, count: int, seed: int = 0, ends_at: float = 15.0, restarts: int = 0) -> None:
        self.restarts = restarts
        self.decided: list[Decision] = []
        self.early: list[str] = []
        self.random = random.Random(seed)
        self.clock = Clock()
        self.began = self.clock.now
        self.ends_at = self.began + ends_at
        self.names = tuple(f"algo-{number + 1}" for number in range(count))
        self.port = free_ports()
        self.cables = {rank: Cable(self.port) for rank in range(1, count)}
        self.nodes: list[Node] = [Node(self, rank) for rank in range(count)]
        self.events: list[tuple[float, object]] = []  # (when, what to call)
        self.strangers: list[socket.socket] = []

    def now(self) -> float:
        """Seconds since the start."""
        return self.clock.now - self.began

    def node(self, rank: int) -> Node:
        """The newest process of a host."""
        return [node for node in self.nodes if node.rank == rank][-1]

    def begins(self, node: Node) -> None:
        """The ranks of a host are started."""
        node.state, node.ran = "running", True
        for other in self.nodes:
            if other.state == "running" and other.attempt < node.attempt:
                self.early.append(f"attempt {node.attempt} on {node.name} meets {other.attempt} on {other.name}")

    def decide(self, rest: Rest) -> Decision:
        """What host 0 decides: to go on as long as it can, and the job allows."""
        done = sum(decision.again for decision in self.decided)
        again = rest.failure is not None and not rest.obstacle and done < self.restarts
        self.decided.append(Decision(again=again, failure=rest.failure, done=done + again, line=rest.obstacle))
        return self.decided[-1]

    def start(self, rank: int, key: JobKey = KEY) -> Node:
        """One more process with this host's name."""
        self.nodes.append(Node(self, rank, key))
        return self.nodes[-1]

    def at(self, when: float, act: object) -> None:
        """Calls `act` when that time has come."""
        self.events.append((when, act))

    def step(self, seconds: float | None = None) -> None:
        """Lets a little time pass, and everybody have a turn."""
        self.clock.now += seconds if seconds is not None else self.random.choice((0.02, 0.1, 0.25, 0.4))
        for event in [event for event in self.events if event[0] <= self.now()]:
            self.events.remove(event)
            event[1]()  # type: ignore[operator]
        for cable in self.cables.values():
            cable.turn()
        turns = [node for node in self.nodes if node.state not in ("over", "dead") and node.paused_until <= self.now()]
        self.random.shuffle(turns)
        for node in turns:
            node.turn()

    def to_the_end(self, limit: float = 300.0) -> None:
        """Until no host is left, and nothing more is to happen."""
        self.until(lambda: not self.events and all(node.state in ("over", "dead") for node in self.nodes), limit)

    def dial(self, data: bytes = b"", rank: int = 0) -> None:
        """A stranger at host 0's port, who says something, and stays."""
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", self.port))
        poll = select.poll()
        poll.register(stranger, select.POLLOUT)
        poll.poll(20)
        try:
            stranger.send(data)
        except OSError:
            pass
        self.strangers.append(stranger)

    def close(self) -> None:
        for node in self.nodes:
            node.roster.close()
        for cable in self.cables.values():
            cable.close()
        for stranger in self.strangers:
            stranger.close()


@contextmanager
def running(hosts: int, restarts: int = 0) -> Iterator[Network]:
    """Hosts that have begun to run."""
    made = Network(hosts, restarts=restarts)
    made.until(lambda: all(node.state == "running" for node in made.nodes))
    yield made
    made.close()
