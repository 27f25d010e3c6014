"""Hosts of one elastic job in one process, as `roster_network` has them: with a cable between each two hosts.

`Node.world` is the term under which its ranks train, None while they do not.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from support.free_ports import free_ports
from support.roster_network import GRACE, JOIN_SECONDS, KEY, Cable, Clock, Steps
from trainshed.base.errors import ClusterError
from trainshed.container.roster.elastic_hosts import ElasticLeader
from trainshed.container.roster.messages import Report
from trainshed.container.roster.roster import LeaderMoved
from trainshed.container.roster.succession import Succession
from trainshed.contract.outcome import Failure


class Node:
    """One host's `train`. failure: what it says of the job's end, None for success; only when it is over."""

    def __init__(self, network: ElasticNetwork, rank: int) -> None:
        self.network, self.rank, self.name = network, rank, network.names[rank]
        self.state = "joining"
        self.failure: Failure | None = None
        self.said: list[str] = []
        self.moves: list[str] = []
        self.paused = False
        self.woke = -100.0  # when it was last resumed
        self.work = network.work
        self.breaks_at = float("inf")  # when its ranks fail, whoever leads
        self.slow = 0.0  # seconds that its ranks take to stop
        self.roster = Succession(
            network.names,
            rank,
            KEY,
            GRACE,
            self.said.append,
            enough=network.enough,
            port=network.ports[rank],
            where=lambda number, found: ("127.0.0.1", network.cables[rank, number].port),
            listen_on=lambda: ("127.0.0.1",),
            clock=network.clock,
        )
        self._life = self._live()

    @property
    def alive(self) -> bool:
        return self.state not in ("over", "dead")

    @property
    def world(self) -> int | None:
        if self.state != "running" or self.roster.stopping or self.paused:
            return None
        if self.network.now() - self.woke < 6 and not self.roster.leads:  # its peers are away: no step of it comes to an end
            return None
        return self.roster.term

    def wake(self) -> None:
        self.paused, self.woke = False, self.network.now()

    def turn(self) -> None:
        self.roster.exchange()
        try:
            next(self._life)
        except StopIteration:
            self.state = "over"

    def _live(self) -> Generator[float, None, None]:
        try:
            yield from self.roster.joining(JOIN_SECONDS)
        except ClusterError as error:
            self.roster.close()
            self.failure = Failure("ClusterError", error.message, 69, host=self.name)
            return
        while True:
            self.state = "running"
            began, report = self.network.now(), Report(state="done")
            while not self.roster.stopping and self.network.now() < began + self.work:
                if self.network.now() > self.breaks_at:
                    report = Report(state="failed", failure=Failure("UserError", "bad batch", 1, host=self.name))
                    break
                yield 0.1
            if self.roster.stopping:
                until = self.network.now() + self.slow
                while self.network.now() < until:
                    yield 0.1
                report = Report(state="stopped", failure=Failure("Stopped", "stopped", 143, host=self.name))
            self.state = "leaving"
            if report.state == "failed":
                self.roster.failed("rank 0 ended with 1")
            try:
                verdict = yield from self.roster.leaving(report)
            except LeaderMoved:
                self.moves.append(self.roster.leader)
                continue
            self.failure = verdict.failure
            return

    def kill(self) -> None:
        """Ends it at once; its kernel closes its connections."""
        if not self.alive:
            return
        self.state = "dead"
        inner = self.roster.inner
        if isinstance(inner, ElasticLeader):
            inner.close()
        else:
            if inner.link is not None:
                inner.link.close()
            inner.dialer.close()


class ElasticNetwork(Steps):
    """The hosts of a job, a cable from each to each, and the clock. work: seconds that the ranks train."""

    def __init__(self, count: int, enough: int, seed: int = 0, work: float = 15.0) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.began = self.clock.now
        self.enough = enough
        self.work = work
        self.names = tuple(f"algo-{number + 1}" for number in range(count))
        self.ports = [free_ports() for _ in range(count)]
        self.cables = {(near, far): Cable(self.ports[far]) for near in range(count) for far in range(count) if near != far}
        self.nodes = [Node(self, rank) for rank in range(count)]
        self.both: list[str] = []  # moments at which two parts of the job trained
        self.events: list[tuple[float, object]] = []

    def now(self) -> float:
        return self.clock.now - self.began

    def at(self, when: float, act: object) -> None:
        self.events.append((when, act))

    def cut(self, *parts: set[int]) -> None:
        """Nothing passes between these parts of the job."""
        for (near, far), cable in self.cables.items():
            cable.cut = not any(near in part and far in part for part in parts)

    def mend(self) -> None:
        for cable in self.cables.values():
            cable.cut = False

    def step(self) -> None:
        self.clock.now += self.random.choice((0.02, 0.1, 0.25, 0.4))
        for event in [event for event in self.events if event[0] <= self.now()]:
            self.events.remove(event)
            event[1]()  # type: ignore[operator]
        self._listen_or_refuse()
        for cable in self.cables.values():
            cable.turn()
        turns = [node for node in self.nodes if node.alive and not node.paused]
        self.random.shuffle(turns)
        for node in turns:
            node.turn()
        worlds = {node.world for node in self.nodes} - {None}
        if len(worlds) > 1:
            self.both.append(f"{self.now():.1f} s: {[(node.name, node.world) for node in self.nodes]}")

    def _listen_or_refuse(self) -> None:
        """A machine that can be reached refuses connections where nobody listens; a cable would accept them."""
        for (_, far), cable in self.cables.items():
            inner = self.nodes[far].roster.inner
            listens = self.nodes[far].alive and isinstance(inner, ElasticLeader) and inner.door.open
            closed = cable.listener.fileno() < 0
            if (listens or cable.cut) and closed:
                cable.listener = socket.create_server(("127.0.0.1", cable.port), backlog=64)
                cable.listener.setblocking(False)
            elif not (listens or cable.cut or closed):
                cable.listener.close()

    def wait(self, seconds: float) -> None:
        end = self.clock.now + seconds
        self.until(lambda: self.clock.now >= end)

    def to_the_end(self, limit: float = 300.0) -> None:
        self.until(lambda: not self.events and not any(node.alive and not node.paused for node in self.nodes), limit)

    def close(self) -> None:
        for node in self.nodes:
            node.roster.close()
        for cable in self.cables.values():
            cable.close()


@contextmanager
def training(hosts: int, enough: int, seed: int = 0, work: float = 15.0) -> Iterator[ElasticNetwork]:
    """An elastic job whose ranks have begun to train, under the first host."""
    made = ElasticNetwork(hosts, enough, seed, work)
    try:
        made.until(lambda: all(node.state == "running" for node in made.nodes))
        made.wait(2)
        yield made
    finally:
        made.close()
