"""MPI's watcher: starts the ranks that Open MPI asks for, and ends Open MPI when all of them have ended.

    mpirun  -> agent -> here, host 0 -> roster -> here, other host -> Open MPI's daemon
    daemon  -> proxy -> here: starts the rank
    all ranks of all hosts ended -> host 0 releases the proxies everywhere -> daemons and mpirun end by themselves

The proxies stay until then because a daemon that ends, or that sees a rank fail, ends MPI for all others, which may be
saving a checkpoint in the job's grace. The supervisor and the roster decide how the job ends, not mpirun.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time

from trainshed.base.errors import ClusterError, LaunchError, some
from trainshed.base.record import Record
from trainshed.machine.signals import STOP_SIGNALS, Interrupted

from ...roster.link import Link
from ...supervisor.watcher import FOREVER, Watcher
from . import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...roster.roster import Roster
    from ...supervisor.launch_plan import MpiPlan, ProcessSpec
    from ...supervisor.watcher import Process, Supervised

SAY_EVERY = 10.0
END_SECONDS = 5.0  # for mpirun and the daemons to end once the ranks have
STOP_SECONDS = 1.0  # the same after a failure or a stop
ABORT_SECONDS = 5.0  # from Open MPI's ending a rank's proxy until we stop waiting for the reason


class Proxy:
    """A proxy that waits, and its rank."""

    def __init__(self, link: Link, process: Process) -> None:
        self.link = link
        self.process = process


class HostRanks(Record):
    """The state of one host's ranks.

    world: ranks in the whole job, as Open MPI says; 0 while none has started.
    here: ranks that have started on this host.
    ended: whether none of them lives, and none will start.
    """

    world: int = 0
    here: int = 0
    ended: bool = False


class MpiWatcher(Watcher):
    """Serves mpirun's agent and the ranks' proxies on a socket; talks to the other hosts' watchers by letters."""

    def __init__(self, plan: MpiPlan, roster: Roster, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.roster = roster
        self.say = say
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(plan.socket)
        self.listener.listen(4096)
        self.listener.setblocking(False)
        self.unidentified: list[Link] = []  # connected, but have sent no request yet
        self.proxies: list[Proxy] = []
        self.world = 0  # ranks in the whole job; 0 while none has started here
        self.ranks_of: dict[int, HostRanks] = {}  # by node rank; host 0 knows all, the others their own
        self.released = False  # whether the proxies were let go
        self.released_at = 0.0
        self.start = time.monotonic()
        self.said = self.start  # when the user last heard that ranks are awaited
        self.stop = 0  # the signal that stops the whole job, 0 before
        self.stop_of = ""  # which other host was sent it
        self.aborted_at = 0.0  # since when proxies of living ranks are gone, 0 while none is

    # --- watched by the supervisor ---

    def descriptors(self) -> dict[int, int]:
        """The socket and all connections."""
        links = self.unidentified + [proxy.link for proxy in self.proxies if proxy.link.open]
        return {self.listener.fileno(): select.POLLIN, **dict(link.descriptor() for link in links)}

    def pause(self) -> float:
        """Half a second while something is awaited."""
        waits = self.plan.node_rank == 0 and not self._all_started()
        return 0.5 if self.released or self.aborted_at or waits else FOREVER

    def busy(self) -> bool:
        """Returns whether ranks of any host may still start or live."""
        return not self.released

    def turn(self, run: Supervised) -> None:
        """Takes requests and letters; ends Open MPI when all ranks have ended."""
        now = time.monotonic()
        self._accept(now)
        for link in list(self.unidentified):
            self._serve(link, run, now)
        for sender, letter in self.roster.letters():
            self._take_letter(sender, letter, run)
        if self.released:
            self._end_helpers(run, now)
            return
        self._report_own_ranks(run)
        self._check_start(run, now)
        self._check_proxies(run, now)
        if self._all_ended(run):
            if self.plan.node_rank == 0:
                self._check_end(run)
            self._release(run, now)

    def signalled(self, number: int, grace: float) -> None:
        """Notes a stop signal to this host."""
        if number in STOP_SIGNALS:
            self.stop = number

    def interrupted_elsewhere(self, why: str, grace: float) -> None:
        """Notes that the job stops because another host was asked to."""
        if not self.stop:
            self.stop = signal.SIGTERM
            self.stop_of = f" ({why})"

    def run_over(self) -> None:
        """Tells the proxies and the other hosts not to wait for this one any more."""
        if not self.released:
            self._release(None, time.monotonic())
        for link in self.unidentified:
            link.close()
        self.listener.close()
        try:
            os.unlink(self.plan.socket)  # the next attempt makes it anew
        except OSError:
            pass

    # --- requests ---

    def _accept(self, now: float) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.unidentified.append(Link(connection, now))

    def _serve(self, link: Link, run: Supervised, now: float) -> None:
        requests = link.receive(now)
        if not requests and link.open:
            return
        self.unidentified.remove(link)
        kind = requests[0].get("type") if requests else ""
        pid, uid = _peer(link.socket) if link.open else (0, -1)
        if uid == os.geteuid() and kind == "agent":
            self._send_daemon(str(requests[0].get("host")), requests[0].get("command"), run)
            link.send({"type": "taken"})
        elif uid == os.geteuid() and kind == "rank":
            self._start_rank(link, pid, run)
            return
        link.close()

    def _send_daemon(self, host: str, command: Any, run: Supervised) -> None:
        """Has a daemon started that mpirun wants on a host: here, or by a letter there."""
        if host not in self.plan.hosts or not isinstance(command, list):
            run.abandon(
                LaunchError(
                    f"mpirun wants to start ranks on {host}, which is not a host of this job",
                    hint="leave out --host and --hostfile: trainshed gives mpirun the job's hosts",
                )
            )
            return
        to = self.plan.hosts.index(host)
        if to == self.plan.node_rank:
            self._start_daemon(command, run)
        else:
            self.roster.post(to, {"type": "daemon", "command": command})

    def _start_daemon(self, command: list[str], run: Supervised) -> None:
        # As ssh does: a shell reads the joined words. Open MPI quotes what needs it, and sets variables in front.
        if not run.stopping:
            spec = self.plan.daemon
            run.start_process(spec.replace(argv=(*spec.argv, " ".join(map(str, command)))))

    def _start_rank(self, link: Link, pid: int, run: Supervised) -> None:
        try:
            of_open_mpi, cpus = _environment(pid), tuple(sorted(os.sched_getaffinity(pid)))
        except OSError:  # it has ended
            link.close()
            return
        spec = rank_spec(self.plan, of_open_mpi, cpus if set(cpus) != os.sched_getaffinity(0) else ())
        if spec is None:
            run.abandon(LaunchError("mpirun is not Open MPI's or is too old", hint="install Open MPI 4.1 or 5"))
        wanted = not run.stopping and not self.released
        process = run.start_process(spec) if spec is not None and wanted else None
        if spec is None or process is None:
            link.send({"type": "end"})
            link.close()
            return
        self.world = int(spec.env["WORLD_SIZE"])
        self.proxies.append(Proxy(link, process))

    # --- the other hosts ---

    def _take_letter(self, sender: int, letter: dict[str, Any], run: Supervised) -> None:
        kind = letter.get("type")
        command = letter.get("command")
        if kind == "daemon" and isinstance(command, list):
            self._start_daemon(command, run)
        elif kind == "ranks":
            world, here = letter.get("world"), letter.get("here")
            if isinstance(world, int) and isinstance(here, int):
                self.ranks_of[sender] = HostRanks(world, here, letter.get("ended") is True)
        elif kind == "release":
            self._release(run, time.monotonic())

    def _report_own_ranks(self, run: Supervised) -> None:
        """Tells host 0 when something has changed about this host's ranks."""
        alive = any(proxy.process.returncode is None for proxy in self.proxies)
        ended = not alive and (bool(self.proxies) or self._none_will_start(run))
        ranks = HostRanks(self.world, len(self.proxies), ended)
        if ranks != self.ranks_of.get(self.plan.node_rank, HostRanks()):
            self.ranks_of[self.plan.node_rank] = ranks
            if self.plan.node_rank > 0:
                self.roster.post(0, {"type": "ranks", **ranks.as_dict()})

    def _none_will_start(self, run: Supervised) -> bool:
        """Whether no further rank will start here."""
        return run.stopping or any(process.returncode is not None for process in _helpers(run))

    def _all_started(self) -> bool:
        """Whether every rank of the job has started; only host 0 knows."""
        world = max((ranks.world for ranks in self.ranks_of.values()), default=0)
        return bool(world) and sum(ranks.here for ranks in self.ranks_of.values()) >= world

    def _all_ended(self, run: Supervised) -> bool:
        """Whether the ranks of all hosts have ended. Host 0 decides; the others only notice when it is gone."""
        absent = self.roster.absent()
        if self.plan.node_rank > 0:
            return 0 in absent
        ended = absent | {host for host, ranks in self.ranks_of.items() if ranks.ended}
        if self._none_will_start(run):
            return len(ended) == len(self.plan.hosts)
        return self._all_started() and ended >= self.ranks_of.keys()

    # --- the end ---

    def _release(self, run: Supervised | None, now: float) -> None:
        """Lets the proxies go, here and, from host 0, everywhere; Open MPI then ends by itself."""
        if self.released:
            return
        self.released = True
        self.released_at = now
        if self.plan.node_rank == 0:
            for host in range(1, len(self.plan.hosts)):
                self.roster.post(host, {"type": "release"})
        if run is not None:
            for process in _helpers(run):
                if process.returncode is None:
                    run.dismiss(process)
        for proxy in self.proxies:
            proxy.link.send({"type": "end"})
            proxy.link.close()

    def _end_helpers(self, run: Supervised, now: float) -> None:
        # After a stop they may wait for hosts that are gone, or for ranks that never came.
        if now - self.released_at > (STOP_SECONDS if run.stopping else END_SECONDS):
            for process in _helpers(run):
                if process.returncode is None:
                    run.kill_helper(process)

    # --- what may go wrong ---

    def _check_start(self, run: Supervised, now: float) -> None:
        """Abandons the run when mpirun does not start all ranks in time; host 0 checks that for all hosts."""
        if self.plan.node_rank > 0 or run.stopping or self._all_started():
            return
        waited, limit = now - self.start, self.plan.start_seconds
        missing = [host for number, host in enumerate(self.plan.hosts) if number not in self.ranks_of]
        names = some(missing, 8)
        what = f"the ranks of {names}" if missing else "all ranks"
        if all(process.returncode == 0 for process in _helpers(run)):
            run.abandon(_not_started())
        elif waited > limit:
            run.abandon(
                ClusterError(
                    f"mpirun has not started {what} within {limit:.0f} s",
                    hint="its daemon there must be able to connect to the first host on any port; "
                    "sagemaker_mpi_custom_mpi_options takes mpirun's own options, e.g. --mca oob_tcp_if_include eth1",
                )
            )
        elif now - self.said >= SAY_EVERY:
            self.said = now
            self.say(f"waiting for mpirun to start {what} ({waited:.0f} s of {limit:.0f} s)")

    def _check_end(self, run: Supervised) -> None:
        """Abandons a run that ends though ranks have never started: they cannot fail, and it would pass for a success."""
        if self.stop and not any(ranks.here for ranks in self.ranks_of.values()):
            run.abandon(Interrupted(self.stop, f"before MPI had started any rank{self.stop_of}"))
        elif not run.stopping and not self._all_started() and not self.roster.absent():
            run.abandon(_not_started())

    def _check_proxies(self, run: Supervised, now: float) -> None:
        """Stops the ranks when Open MPI has ended their proxies, as it does when it aborts the job.

        As a rule the reason is known at once from a rank or another host; only without one it is given here.
        """
        for proxy in self.proxies:
            if proxy.link.open:
                proxy.link.receive(now)
        gone = any(not proxy.link.open and proxy.process.returncode is None for proxy in self.proxies)
        self.aborted_at = (self.aborted_at or now) if gone else 0.0
        if gone and not run.stopping and now - self.aborted_at > ABORT_SECONDS:
            run.stop_for_others("Open MPI ended the ranks without giving a reason", interrupted=False, lost=False)


def _not_started() -> LaunchError:
    return LaunchError(
        "mpirun ended without starting all ranks",
        hint="look at sagemaker_mpi_custom_mpi_options (such as `--bind-to` with more ranks than cores, also of hosts on "
        "one machine): trainshed itself gives the hosts and the program",
    )


def rank_spec(plan: MpiPlan, of_open_mpi: dict[str, str], cpus: tuple[int, ...]) -> ProcessSpec | None:
    """The rank that Open MPI asks for by its proxy's environment; None if that was not made by Open MPI."""
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


def _helpers(run: Supervised) -> list[Process]:
    return [process for process in run.ranks if process.spec.helper]


def _peer(connection: socket.socket) -> tuple[int, int]:
    """PID and UID of the process at the other end."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def _environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with. Raises OSError.

    By hand: an MPI job's start would otherwise wait for psutil to load.
    """
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry]
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
