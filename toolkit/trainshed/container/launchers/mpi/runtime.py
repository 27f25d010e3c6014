"""MPI's part in the supervisor's loop: brings the ranks that Open MPI asks for, and ends Open MPI when they have ended.

    mpirun  -> agent -> here, host 0 -> roster -> here, other host -> Open MPI's daemon
    daemon  -> proxy -> here: starts the rank
    all ranks of all hosts ended -> host 0 releases the proxies everywhere -> daemons and mpirun end by themselves

The proxies stay until then because a daemon that goes, or that sees a rank fail, takes MPI away from all others, who may
be saving a checkpoint in the job's grace. How the job ends is not mpirun's to say but the supervisor's and the roster's.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from trainshed.base.errors import ClusterError, LaunchError
from trainshed.base.record import Record

from ...roster.link import Link
from ...supervisor.watcher import FOREVER, Watcher
from . import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...roster.roster import Roster
    from ...supervisor.launch_plan import ProcessSpec
    from ...supervisor.watcher import Process, Supervised
    from . import Runtime

SAY_EVERY = 10.0
END_SECONDS = 5.0  # that mpirun and the daemons get to end once the ranks have
STOP_SECONDS = 1.0  # the same after a failure or a stop
ABORT_SECONDS = 5.0  # from the moment Open MPI takes a rank's proxy away until we stop waiting for the reason


class Proxy:
    """A proxy that is waiting, and its rank."""

    def __init__(self, link: Link, process: Process) -> None:
        self.link, self.process = link, process


class Ranks(Record):
    """What is known of one host's ranks.

    world: ranks in the whole job, as Open MPI says, 0 where none has come yet.
    here: ranks that have come on this host.
    ended: whether none of them lives, and none may be on its way.
    """

    world: int = 0
    here: int = 0
    ended: bool = False


class MpiRuntime(Watcher):
    """MPI's watcher."""

    def __init__(self, plan: Runtime, roster: Roster, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.roster = roster
        self.say = say
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.door.bind(plan.socket)
        self.door.listen(4096)
        self.door.setblocking(False)
        self.visitors: list[Link] = []  # connected, but have not said what they want
        self.proxies: list[Proxy] = []
        self.world = 0  # ranks in the whole job; 0 while none has come here
        self.known: dict[int, Ranks] = {}  # by node rank; host 0 knows all, others themselves
        self.released = False
        self.start = self.said = time.monotonic()
        self.release_at = 0.0
        self.aborted_at = 0.0

    # --- watched by the supervisor ---

    def descriptors(self) -> dict[int, int]:
        """What the supervisor's loop is to poll for us."""
        links = self.visitors + [proxy.link for proxy in self.proxies if proxy.link.open]
        return {self.door.fileno(): select.POLLIN, **dict(link.descriptor() for link in links)}

    def pause(self) -> float:
        """Seconds until we must have a turn."""
        waits = self.plan.node_rank == 0 and not self._all_there()
        return 0.5 if self.released or self.aborted_at or waits else FOREVER

    def busy(self) -> bool:
        """Whether the ranks of any host may still be coming or alive."""
        return not self.released

    def turn(self, supervised: Supervised) -> None:
        """Takes requests and letters; ends Open MPI when all is over."""
        now = time.monotonic()
        self._accept(now)
        for link in list(self.visitors):
            self._visit(link, supervised, now)
        for sender, letter in self.roster.letters():
            self._take(sender, letter, supervised)
        if self.released:
            self._end_helpers(supervised, now)
            return
        self._note_own(supervised)
        self._look_after_start(supervised, now)
        self._look_after_proxies(supervised, now)
        if self._over(supervised):
            self._release(supervised, now)

    def run_over(self) -> None:
        """Tells the proxies and the other hosts not to wait for this one any more."""
        if not self.released:
            self._release(None, time.monotonic())
        for link in self.visitors:
            link.close()
        self.door.close()

    # --- requests ---

    def _accept(self, now: float) -> None:
        while True:
            try:
                connection, _ = self.door.accept()
            except OSError:
                return
            self.visitors.append(Link(connection, now))

    def _visit(self, link: Link, supervised: Supervised, now: float) -> None:
        requests = link.receive(now)
        if not requests and link.open:
            return
        self.visitors.remove(link)
        kind = requests[0].get("type") if requests else ""
        pid, uid = _peer(link.socket) if link.open else (0, -1)
        if uid == os.geteuid() and kind == "agent":
            self._send_daemon(str(requests[0].get("host")), requests[0].get("command"), supervised)
            link.send({"type": "taken"})
        elif uid == os.geteuid() and kind == "rank":
            self._start_rank(link, pid, supervised)
            return
        link.close()

    def _send_daemon(self, host: str, command: Any, supervised: Supervised) -> None:
        """mpirun wants a daemon on a host: the roster takes the wish there."""
        if host not in self.plan.hosts or not isinstance(command, list):
            supervised.abandon(
                LaunchError(
                    f"mpirun wants to start ranks on {host}, which is no host of this job",
                    hint="leave out --host and --hostfile: trainshed gives mpirun the job's hosts",
                )
            )
            return
        to = self.plan.hosts.index(host)
        if to == self.plan.node_rank:
            self._start_daemon(command, supervised)
        else:
            self.roster.post(to, {"type": "daemon", "command": command})

    def _start_daemon(self, command: list[str], supervised: Supervised) -> None:
        # As ssh does: the words joined, read by a shell. Open MPI quotes what needs it, and sets variables in front.
        if not supervised.stopping:
            spec = self.plan.daemon
            supervised.start_process(spec.replace(argv=(*spec.argv, " ".join(map(str, command)))))

    def _start_rank(self, link: Link, pid: int, supervised: Supervised) -> None:
        try:
            of_open_mpi, cpus = _environment(pid), tuple(sorted(os.sched_getaffinity(pid)))
        except OSError:  # gone already
            link.close()
            return
        spec = rank_spec(self.plan, of_open_mpi, cpus if set(cpus) != os.sched_getaffinity(0) else ())
        if spec is None:
            supervised.abandon(LaunchError("mpirun is not Open MPI's, or too old", hint="install Open MPI 4.1 or 5"))
        wanted = not supervised.stopping and not self.released
        process = supervised.start_process(spec) if spec is not None and wanted else None
        if spec is None or process is None:
            link.send({"type": "end"})
            link.close()
            return
        self.world = int(spec.env["WORLD_SIZE"])
        self.proxies.append(Proxy(link, process))

    # --- the other hosts ---

    def _take(self, sender: int, letter: dict[str, Any], supervised: Supervised) -> None:
        kind = letter.get("type")
        if kind == "daemon":
            self._start_daemon(letter.get("command") or [], supervised)
        elif kind == "ranks":
            self.known[sender] = Ranks(int(letter["world"]), int(letter["here"]), bool(letter["ended"]))
        elif kind == "release":
            self._release(supervised, time.monotonic())

    def _note_own(self, supervised: Supervised) -> None:
        """Keeps host 0 up to date about the ranks here."""
        alive = any(proxy.process.returncode is None for proxy in self.proxies)
        ended = not alive and (bool(self.proxies) or self._no_more(supervised))
        ranks = Ranks(self.world, len(self.proxies), ended)
        if ranks != self.known.get(self.plan.node_rank, Ranks()):
            self.known[self.plan.node_rank] = ranks
            if self.plan.node_rank > 0:
                self.roster.post(0, {"type": "ranks", **ranks.as_dict()})

    def _no_more(self, supervised: Supervised) -> bool:
        """Whether no further ranks will come here."""
        return supervised.stopping or any(process.returncode is not None for process in _helpers(supervised))

    def _all_there(self) -> bool:
        """Whether every rank of the job has been started; only host 0 knows, and only it asks."""
        world = max((ranks.world for ranks in self.known.values()), default=0)
        return bool(world) and sum(ranks.here for ranks in self.known.values()) >= world

    def _over(self, supervised: Supervised) -> bool:
        """Whether no host has a rank left that Open MPI should serve; for host 0 to say, as long as it is there."""
        absent = self.roster.absent()
        if self.plan.node_rank > 0:
            return 0 in absent
        ended = absent | {host for host, ranks in self.known.items() if ranks.ended}
        if self._no_more(supervised):
            return len(ended) == len(self.plan.hosts)
        return self._all_there() and ended >= self.known.keys()

    # --- the end ---

    def _release(self, supervised: Supervised | None, now: float) -> None:
        """Lets the proxies go, here and, from host 0, everywhere; Open MPI ends of that."""
        if self.released:
            return
        self.released, self.release_at = True, now
        if self.plan.node_rank == 0:
            for host in range(1, len(self.plan.hosts)):
                self.roster.post(host, {"type": "release"})
        if supervised is not None:
            for process in _helpers(supervised):
                if process.returncode is None:
                    supervised.dismiss(process)
        for proxy in self.proxies:
            proxy.link.send({"type": "end"})
            proxy.link.close()

    def _end_helpers(self, supervised: Supervised, now: float) -> None:
        # After a stop they may wait for hosts that are gone, or for ranks that never came.
        if now - self.release_at > (STOP_SECONDS if supervised.stopping else END_SECONDS):
            for process in _helpers(supervised):
                if process.returncode is None:
                    supervised.kill_helper(process)

    # --- what may go wrong ---

    def _look_after_start(self, supervised: Supervised, now: float) -> None:
        """mpirun must bring the ranks in time; host 0 watches that for all."""
        if self.plan.node_rank > 0 or supervised.stopping or self._all_there():
            return
        waited, limit = now - self.start, self.plan.start_seconds
        missing = [host for number, host in enumerate(self.plan.hosts) if number not in self.known]
        names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        what = f"the ranks of {names}" if missing else "all ranks"
        if all(process.returncode == 0 for process in _helpers(supervised)):
            supervised.abandon(
                LaunchError(
                    "mpirun ended without starting all ranks",
                    hint="look at sagemaker_mpi_custom_mpi_options: trainshed itself gives the hosts and the program",
                )
            )
        elif waited > limit:
            supervised.abandon(
                ClusterError(
                    f"mpirun has not started {what} within {limit:.0f} s",
                    hint="its daemon there must be able to connect to the first host on any port; "
                    "sagemaker_mpi_custom_mpi_options takes mpirun's own options, e.g. --mca oob_tcp_if_include eth1",
                )
            )
        elif now - self.said >= SAY_EVERY:
            self.said = now
            self.say(f"waiting for mpirun to start {what} ({waited:.0f} s of {limit:.0f} s)")

    def _look_after_proxies(self, supervised: Supervised, now: float) -> None:
        """Open MPI takes proxies away when it aborts the job; the reason comes from elsewhere, as a rule at once."""
        for proxy in self.proxies:
            if proxy.link.open:
                proxy.link.receive(now)
        gone = any(not proxy.link.open and proxy.process.returncode is None for proxy in self.proxies)
        self.aborted_at = (self.aborted_at or now) if gone else 0.0
        if gone and not supervised.stopping and now - self.aborted_at > ABORT_SECONDS:
            supervised.stop_for_others("Open MPI ended the ranks and does not say why", interrupted=False, lost=False)


def rank_spec(plan: Runtime, of_open_mpi: dict[str, str], cpus: tuple[int, ...]) -> ProcessSpec | None:
    """The rank that Open MPI asks for by its proxy's environment; None where that is not Open MPI's."""
    numbers = options.torch_rank(of_open_mpi)
    if not numbers:
        return None
    rank, several = numbers["RANK"], numbers["WORLD_SIZE"] != "1"
    variables = {**of_open_mpi, **plan.own, **numbers}
    variables["TORCHELASTIC_ERROR_FILE"] = f"{os.path.dirname(plan.socket)}/rank{rank}.error.json"
    return plan.rank.replace(
        env={name: value for name, value in variables.items() if value or name not in plan.own},
        label=plan.rank.label.replace("{rank}", rank) if several else "",
        log=plan.rank.log.replace("{rank}", rank),
        rank=int(rank),
        cpus=cpus,
    )


def _helpers(supervised: Supervised) -> list[Process]:
    return [process for process in supervised.ranks if process.spec.helper]


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def _environment(pid: int) -> dict[str, str]:
    """A process's environment as it was started with. Raises OSError."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry]
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
