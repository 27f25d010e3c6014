"""`trainshed doctor --cluster`, run on every host of a job: whether the hosts reach each other, and how well.

The hosts meet over a separate roster (two ports above rank 0's, so that the check also works as the program of a job).
Host 0 then schedules rounds in which every host has at most one partner, so that measurements do not disturb each other.
In a pair the host of lower rank measures: the median round-trip time, the bytes that one connection carries in a quarter
of a second, and the offset of the other's clock. The number of rounds is at most `ROUNDS`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import socket
import statistics
import struct
import sys
import threading
import time
from contextlib import suppress

import trainshed
from trainshed.base.check import Check, fail, ok, warn
from trainshed.base.errors import TrainshedError
from trainshed.base.record import Record
from trainshed.contract.reading import read_job

from ..cluster import resolve
from ..cluster.hosts import resolves
from ..report.run_record import installed_versions
from ..roster.addresses import to_listen_on
from ..roster.key import job_key
from ..roster.leader import Leader
from ..roster.member import Member
from ..roster.messages import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

ROUNDS = 15  # all pairs of up to 16 hosts; of more hosts each meets 15 others
ROUND_TRIPS = 30
CARRY_SECONDS = 0.25
PIECE = bytes(1 << 18)
PATIENCE = 20.0  # seconds that a round, or a host's facts, may take
CLOCK_LIMIT = 1.0  # seconds
_STRANGERS = 64  # connections without proof at once: the oldest goes
CODE_FILES, CODE_BYTES = 5000, 1 << 28
_NONCE_BYTES = _MAC_BYTES = 32
_CLOCK = struct.Struct("!d")


class Pair(Record):
    """One host's measurements of another. Times in seconds; `problem` says why there is no measurement."""

    one: str
    other: str
    latency: float = 0.0
    bytes_per_second: float = 0.0
    offset: float = 0.0
    problem: str = ""


class Server:
    """Answers the measurements of other hosts, in background threads, until it is closed."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.strangers: list[socket.socket] = []  # that have not proven the secret, oldest first
        self.socket = socket.create_server(("", 0), backlog=64)
        self.port = int(self.socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:  # closed
                return
            self.strangers.append(connection)
            if len(self.strangers) > _STRANGERS:
                with suppress(OSError):  # its thread hears of it, and ends
                    self.strangers.pop(0).shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answers each `p` with the time; after `c` counts the bytes that follow and answers with their number."""
        with connection:
            try:
                if not self._is_proven(connection):
                    return
                connection.settimeout(PATIENCE)
                while (word := connection.recv(1)) == b"p":
                    connection.sendall(_CLOCK.pack(time.time()))
                taken = 0
                while word == b"c" and (data := connection.recv(len(PIECE))):
                    taken += len(data)
                connection.sendall(_CLOCK.pack(taken))
            except OSError:
                return

    def _is_proven(self, connection: socket.socket) -> bool:
        try:
            connection.settimeout(PATIENCE / 2)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = os.urandom(_NONCE_BYTES)
            connection.sendall(nonce)
            return hmac.compare_digest(_exactly(connection, _MAC_BYTES), _proof(self.secret, nonce))
        finally:
            with suppress(ValueError):  # it had to go already
                self.strangers.remove(connection)

    def close(self) -> None:
        """Stops accepting connections."""
        self.socket.close()


def _proof(secret: bytes, nonce: bytes) -> bytes:
    """That the measuring host knows the job's secret; the secret itself never travels."""
    return hmac.digest(secret, b"measure|" + nonce, "sha256")


def measure(one: str, other: str, address: str, port: int, secret: bytes) -> Pair:
    """Measures the connection from this host to another; never raises."""
    try:
        with socket.create_connection((address, port), timeout=PATIENCE / 4) as connection:
            connection.settimeout(PATIENCE / 2)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_proof(secret, _exactly(connection, _NONCE_BYTES)))
            trips = []
            for _ in range(ROUND_TRIPS):
                sent, clock = time.perf_counter(), time.time()
                connection.sendall(b"p")
                (theirs,) = _CLOCK.unpack(_exactly(connection, _CLOCK.size))
                took = time.perf_counter() - sent
                trips.append((took, theirs - (clock + took / 2)))
            start = time.perf_counter()
            connection.sendall(b"c")
            while time.perf_counter() - start < CARRY_SECONDS:
                connection.sendall(PIECE)
            connection.shutdown(socket.SHUT_WR)
            (taken,) = _CLOCK.unpack(_exactly(connection, _CLOCK.size))
            seconds = time.perf_counter() - start
    except (OSError, struct.error) as error:
        return Pair(one, other, problem=f"{address}:{port}: {getattr(error, 'strerror', None) or error}")
    return Pair(one, other, statistics.median(trip for trip, _ in trips), taken / seconds, min(trips)[1])


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError(104, "the other side closed the connection")
        data += more
    return data


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Pairs of hosts, in rounds in which no host appears twice; all pairs occur unless there are more than ROUNDS rounds."""
    ring = list(range(count + count % 2))  # an odd number gets a partner that is not there
    found = []
    for _ in range(min(len(ring) - 1, ROUNDS)):
        pairs = [(ring[place], ring[-1 - place]) for place in range(len(ring) // 2)]
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < count])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def facts(code_folder: str) -> dict[str, str]:
    """Facts that must be equal on all hosts."""
    packages = sorted({name for folder in sys.path for name in _names(folder) if name.endswith(".dist-info")})
    found = {
        "trainshed": trainshed.__version__,
        "Python": platform.python_version(),
        "architecture": platform.machine(),
        "code": _digest(code_folder),
        "installed packages": hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12],
    }
    return {**found, **{name: version for name, version in installed_versions().items() if name == "torch"}}


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _digest(folder: str) -> str:
    """A hash of the names and contents of a folder's files; "none" for a missing or empty folder."""
    digest, count, size = hashlib.sha256(), 0, 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = f"{root}/{name}"
            digest.update(os.path.relpath(path, folder).encode("utf-8", "replace"))
            try:
                with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                    data = file.read(CODE_BYTES) or b""
            except OSError:
                data = b"unreadable"
            digest.update(data)
            count, size = count + 1, size + len(data)
            if count >= CODE_FILES or size >= CODE_BYTES:
                return digest.hexdigest()[:12]
    return digest.hexdigest()[:12] if count else "none"


class ClusterCheck:
    """One host's part in the check."""

    def __init__(self, job: TrainingJob, cluster: Cluster, secret: bytes, part: Leader | Member) -> None:
        self.job, self.cluster, self.secret, self.part = job, cluster, secret, part
        self.name = cluster.current_host
        self.server = Server(secret)
        self.facts: dict[str, dict[str, Any]] = {}  # host 0: of each host
        self.pairs: list[Pair] = []
        self.expected: set[str] = set()  # host 0: whose measurement of this round is awaited
        self.failed: bool | None = None  # the others: what host 0 made of it
        part.listen("doctor", self.heard)

    def mine(self) -> dict[str, Any]:
        """Facts that this host tells host 0 about itself."""
        names = [host for host in self.cluster.hosts if not resolves(host)] if self.cluster.scheduler == "sagemaker" else []
        return {"facts": facts(self.job.paths.code), "port": self.server.port, "unresolved": names}

    def heard(self, host: str, message: dict[str, Any]) -> None:
        """A message of another host."""
        do = message.get("do")
        if do == "facts":
            self.facts[host] = message
        elif do == "measure":
            pair = measure(self.name, message["other"], message["address"], int(message["port"]), self.secret)
            self.part.send({"type": "doctor", "do": "measured", "pair": pair.plain()})
        elif do == "measured":
            self.pairs.append(Pair(**message["pair"]))
            self.expected.discard(host)
        elif do == "end":
            self.failed = bool(message["failed"])

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Lets the roster work until something is done; whether it was in time."""
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            self.part.wait(0.1)
        return done()

    def follow(self) -> list[Check]:
        """The other hosts: follows the instructions of host 0 until the check ends."""
        assert isinstance(self.part, Member)
        member = self.part
        member.send({"type": "doctor", "do": "facts", **self.mine()})
        self.wait(lambda: self.failed is not None or member.verdict is not None, PATIENCE * (ROUNDS + 2))
        if self.failed is None:
            return [fail("cluster", f"{self.cluster.hosts[0]} did not finish the check", "look at its output")]
        where = f"the table is printed on {self.cluster.hosts[0]}"
        return [fail("cluster", f"a check failed; {where}") if self.failed else ok("cluster", f"all checks passed; {where}")]

    def lead(self) -> list[Check]:
        """Host 0: collects the facts, has the pairs measure, judges the results and sends the verdict."""
        assert isinstance(self.part, Leader)
        leader = self.part
        hosts = self.cluster.hosts
        self.facts[self.name] = self.mine()
        self.wait(lambda: all(host in self.facts for host in leader.present()), PATIENCE)
        there = [host for host in hosts if host in self.facts]
        for pairs in rounds(len(there)):
            leader.exchange()  # our own measurement may have taken so long that a host has made its connection anew
            self.expected = {there[one] for one, _ in pairs} - {self.name}
            own = ""
            for one, other in pairs:
                own = there[other] if there[one] == self.name else own
                message = {"type": "doctor", "do": "measure", "other": there[other], **self._place(leader, there[other])}
                if there[one] != self.name:
                    leader.send_to(there[one], message)
            if own:
                place = self._place(leader, own)
                self.pairs.append(measure(self.name, own, place["address"], place["port"], self.secret))
            if not self.wait(lambda: not self.expected.intersection(leader.present()), PATIENCE):
                self.pairs += [Pair(host, "its partner", problem="no answer in time") for host in sorted(self.expected)]
        missing = [host for host in hosts if host not in there or host not in leader.present()]
        checks = judge(hosts, missing, self.facts, self.pairs)
        leader.send({"type": "doctor", "do": "end", "failed": any(check.level == "fail" for check in checks)})
        return checks

    def _place(self, leader: Leader, host: str) -> dict[str, Any]:
        """The address of a host's server as host 0 sees it; names need not resolve on every host."""
        return {"address": leader.address_of(host), "port": self.facts[host]["port"]}


def judge(
    hosts: tuple[str, ...], missing: list[str], known: Mapping[str, Mapping[str, Any]], pairs: list[Pair]
) -> list[Check]:
    """The checks of hosts, names, equal facts, connections and clocks."""
    found = [fail("hosts", f"{', '.join(missing)} did not answer", "look at its output") if missing else
             ok("hosts", f"all {len(hosts)} hosts answered")]  # fmt: skip
    for host, told in known.items():
        if told.get("unresolved"):
            fix = "put the hosts on one network, with these names (docker run --network NET --network-alias NAME)"
            found.append(fail("names", f"{host} cannot resolve {', '.join(told['unresolved'])}", fix))
    for name in dict.fromkeys(name for told in known.values() for name in told["facts"]):
        by_value: dict[str, list[str]] = {}
        for host, told in known.items():
            by_value.setdefault(told["facts"].get(name, "none"), []).append(host)
        if len(by_value) > 1:
            listed = "; ".join(f"{value} on {', '.join(where[:4])}" for value, where in by_value.items())
            found.append(fail(f"same {name}", listed, "start all hosts from the same image, with the same code"))
        else:
            found.append(ok(f"same {name}", next(iter(by_value))))
    for pair in sorted(pairs, key=lambda pair: (pair.bytes_per_second, -pair.latency)):
        way = f"{pair.one} - {pair.other}"
        if pair.problem:
            fix = "open all TCP ports between the hosts (security group, network policy, firewall)"
            found.append(fail(way, pair.problem, fix))
            continue
        text = (
            f"{pair.latency * 1e6:.0f} us, {pair.bytes_per_second * 8 / 1e9:.2f} Gbit/s (one connection), "
            f"clock {pair.offset * 1e3:+.0f} ms"
        )
        late = abs(pair.offset) > CLOCK_LIMIT
        found.append(warn(way, text, "set the clocks by NTP") if late else ok(way, text))
    return found


def checks(environ: Mapping[str, str], say: Callable[[str], None]) -> list[Check]:
    """All checks; on host 0 the whole table, on the others one line."""
    try:
        job = read_job(environ)
        cluster = resolve(job, environ)
    except TrainshedError as error:
        return [fail("cluster", error.message, error.hint)]
    if len(cluster.hosts) < 2 or not cluster.participates:
        return [ok("cluster", "this job has one host, so there are no connections to check")]
    key = job_key(job, cluster, environ, purpose="doctor")
    port = (job.settings.roster_port or cluster.port + 1) + 1
    port = port if port < 65_536 else port - 8  # the roster itself has turned back, too
    part: Leader | Member = (
        Leader(cluster.hosts, port, key, 0.0, say, addresses=to_listen_on(cluster))
        if cluster.rank == 0
        else Member(cluster.hosts, cluster.rank, (cluster.address, port), key, 0.0, say)
    )
    try:
        part.join(job.settings.host_timeout_seconds)
    except TrainshedError as error:
        part.close()
        return [fail("hosts", error.message, error.hint)]
    meeting = ClusterCheck(job, cluster, key.secret, part)
    try:
        found = meeting.lead() if cluster.rank == 0 else meeting.follow()
        part.leave(Report(state="done"))
    finally:
        meeting.server.close()
        part.close()
    return found
