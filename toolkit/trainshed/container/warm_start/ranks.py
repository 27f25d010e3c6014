"""Starts the ranks of a job on this host from one interpreter (`template`), at the first start and at each restart.

That they are forked changes nothing that they could see. Where that is not certain they are started plainly, and the run
record says why.
"""

from __future__ import annotations

import os
import select
import sys
import time

from trainshed.contract.wire.variables import WARM_SOCKET
from trainshed.machine.signals import STOP_SIGNALS, signal

from ..supervisor.launch_plan import StartError
from ..supervisor.rank import send
from ..supervisor.spawn import make_room, open_pipe, spawn
from ..supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..supervisor.launch_plan import LaunchPlan, ProcessSpec
    from ..supervisor.watcher import Supervised

HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")
IMPORT_SECONDS = 600.0  # then ranks are started plainly; sooner where a job without any would count as hung
_FORK_SECONDS = 15.0  # for each rank; `train` waits, and other hosts take it for gone after 27 s
_MOST_PRINTED = 1 << 15  # bytes that imports may print: each rank is given them at once, in a pipe that nobody reads yet
_HIGH = 60  # the socket's number, so that the interpreter's own files have those that they would have
# Variables in which ranks may differ from the interpreter that they are forked from. Libraries of machine code, whose
# reading nobody sees, look at these when they are used, and not when they are loaded.
_OF_RANKS = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_PORT", "SM_MASTER_PORT", "TF_CONFIG"),
        *("JAX_COORDINATOR_ADDRESS", "JAX_LOCAL_DEVICE_IDS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
        *("OMPI_COMM_WORLD_NODE_RANK", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT"),
    )
)


def unfit(plan: LaunchPlan, again: bool) -> str:
    """Why the ranks of a plan are started plainly whatever they import; "" for no reason.

    Args:
        again: whether they may be started again.
    """
    specs = plan.processes
    if plan.mpi is not None or plan.agent_events or not specs or any(spec.helper for spec in specs):
        return "another program starts the ranks"
    first = specs[0]
    if len(specs) == 1 and not again:
        return "there is one rank, which is started once"
    script = first.argv[1] if len(first.argv) > 1 else ""
    if not script.endswith(".py") or script.startswith("/") or not os.path.isabs(first.argv[0]):
        return "the program is not a Python file of the code folder"
    folders = first.env.get("PYTHONPATH", "").split(os.pathsep)
    if not all(map(os.path.isabs, folders)):
        return "PYTHONPATH has folders that depend on where Python is started"
    if any((spec.argv, spec.cwd, list(spec.env)) != (first.argv, first.cwd, list(first.env)) for spec in specs):
        return "the ranks are different programs"
    if any(spec.cpus for spec in specs):
        return "ranks are bound to CPUs, which libraries count at import"
    return ""


class NotForked(Exception):
    """A rank has to be started plainly; the text says why."""


class WarmStart:
    """The interpreter on this host, over all attempts of a job. why: why there is none to be used, "" while there may be."""

    def __init__(self) -> None:
        self.why = ""
        self.pid = 0
        self.ready = False
        self._spec: ProcessSpec | None = None
        self._reads: frozenset[str] = frozenset()
        self._socket: Any = None
        self._printed: dict[int, bytes] = {}  # by its stdout and stderr

    @property
    def waiting(self) -> bool:
        """Tells whether it is still importing."""
        return self._socket is not None and not self.ready

    def begin(self, spec: ProcessSpec) -> None:
        """Starts it, as a rank of this kind."""
        import _socket
        import fcntl

        self._spec = spec
        ours, its = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        number = -1
        path = os.pathsep.join((HOOK, spec.env["PYTHONPATH"]))
        try:
            number = fcntl.fcntl(its.fileno(), fcntl.F_DUPFD, _HIGH)  # which programs inherit
            env = {**spec.env, "PYTHONPATH": path, WARM_SOCKET: f"{number}:"}
            ours.send(b"\0".join(map(os.fsencode, spec.argv)))
            self.pid, *streams = spawn(spec.replace(argv=(spec.argv[0], "-c", ""), env=env))
        except (OSError, StartError) as error:
            ours.close()
            self.why = f"the interpreter for it cannot be started: {error}"
        else:
            ours.setblocking(False)
            self._socket, self._printed = ours, dict.fromkeys(streams, b"")
        finally:
            _close([number] if number >= 0 else [])
            its.close()

    def descriptors(self) -> dict[int, int]:
        """What to poll while it imports."""
        return dict.fromkeys((self._socket.fileno(), *self._printed), select.POLLIN) if self.waiting else {}

    def take(self) -> None:
        """Takes what it says."""
        if not self.waiting:
            return
        for stream in self._printed:
            self._printed[stream] += _read(stream)
        try:
            kind, *fields = os.fsdecode(self._socket.recv(1 << 20)).split("\0")
        except BlockingIOError:
            return
        except ConnectionResetError:  # it has not read what we have sent
            kind, fields = "", []
        self.ready = kind == "ready"
        self._reads = frozenset(fields)
        if not self.ready:
            self.give_up(fields[0] if kind else "the interpreter for it has ended")
        elif sum(map(len, self._printed.values())) > _MOST_PRINTED:
            self.give_up("importing prints too much")

    def give_up(self, why: str) -> None:
        """Does without it from now on."""
        self.why = self.why or why
        self.close()

    def spawn_or_start(self, spec: ProcessSpec, plainly: Callable[[str], None]) -> tuple[int, int, int]:
        """Starts a rank from the interpreter, or plainly: then says why. Raises StartError."""
        try:
            return self.spawn(spec)
        except NotForked as error:
            plainly(str(error))
            return spawn(spec)

    def spawn(self, spec: ProcessSpec) -> tuple[int, int, int]:
        """Starts a rank as `supervisor.spawn` does, from the interpreter. Raises NotForked; StartError."""
        if not self.ready or self._spec is None:
            raise NotForked(self.why)
        changed = {name: value for name, value in spec.env.items() if self._spec.env.get(name) != value}
        for name in changed:
            if name not in _OF_RANKS:
                raise NotForked(f"{name} is not what it was at the first start")
            if name in self._reads or "*" in self._reads:
                raise NotForked(f"importing reads {name if name in self._reads else 'the whole environment'}")
        made: list[int] = []
        try:
            made += open_pipe()
            made += open_pipe()
            pid = self._fork(changed, made[1], made[3])
        except OSError as error:
            _close(made)
            self.give_up(f"the interpreter for it does not answer: {error}")
            raise NotForked(self.why) from error
        except NotForked:
            _close(made)
            raise
        _close([made[1], made[3]])
        return pid, made[0], made[2]

    def _fork(self, changed: dict[str, str], out: int, err: int) -> int:
        """Has a rank forked that writes to these pipes; returns its PID. Raises OSError, NotForked."""
        import _socket

        ours, its = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            fields = [b"fork", *(os.fsencode(f"{name}={value}") for name, value in changed.items()), b""]
            passed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (out, err, its.fileno()))
            self._socket.sendmsg([b"\0".join(fields)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
            its.close()
            pid = self._answer(ours)
            for stream, printed in zip((out, err), self._printed.values(), strict=True):
                os.write(stream, printed)
            ours.send(b"g")
            return pid
        finally:
            its.close()
            ours.close()

    def _answer(self, rank: Any) -> int:
        """The PID that a new rank sends. Raises OSError, NotForked."""
        poll = select.poll()
        poll.register(rank, select.POLLIN)
        poll.register(self._socket, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(int(_FORK_SECONDS * 1000))}
        if rank.fileno() in ready and (said := rank.recv(64)):
            return int(said)
        if self._socket.fileno() in ready and (said := self._socket.recv(1 << 16)):
            self.give_up(os.fsdecode(said).split("\0")[1])
            raise NotForked(self.why)
        raise TimeoutError("it is gone" if ready else f"{_FORK_SECONDS:g} s have passed")

    def dismiss(self) -> None:
        """Lets it end; it does not come back."""
        self.ready = False
        _close(self._printed)
        self._printed = {}
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Ends it now."""
        self.dismiss()
        pid, self.pid = self.pid, 0
        try:
            if pid:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # whether it has not been reaped
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        except ChildProcessError:
            pass


class WarmRanks(Watcher):
    """Starts the ranks of one attempt when the interpreter is ready, or plainly when it will not be.

    Args:
        specs: the ranks.
        once: whether they are the last that it is there for.
        hang_seconds: when a job counts as hung, 0 for never.
        tell: is told how many are forked, how many are started plainly and why, and how long they waited in seconds.
    """

    def __init__(
        self,
        warm: WarmStart,
        specs: tuple[ProcessSpec, ...],
        once: bool,
        hang_seconds: float,
        tell: Callable[[int, int, str, float], None],
    ) -> None:
        self._warm = warm
        self._specs = specs
        self._once = once
        self._tell = tell
        self._stop: int = signal.SIGTERM
        self._limit = min(IMPORT_SECONDS, hang_seconds / 2 or IMPORT_SECONDS)
        self._since = time.monotonic()
        make_room(len(specs))

    def descriptors(self) -> dict[int, int]:
        return self._warm.descriptors()

    def pause(self) -> float:
        if not self._specs:
            return FOREVER
        if self._warm.waiting:
            return max(0.0, self._since + self._limit - time.monotonic())
        return 0.0

    def busy(self) -> bool:
        return bool(self._specs)

    def own_processes(self) -> tuple[int, ...]:
        return (self._warm.pid,) if self._warm.pid else ()

    def signalled(self, number: int, grace: float) -> None:
        if number in STOP_SIGNALS:
            self._stop = number

    def turn(self, run: Supervised) -> None:
        if not self._specs:
            return
        if not self._warm.pid and not self._warm.why:
            self._warm.begin(self._specs[0])
        self._warm.take()
        if run.stopping:
            self._warm.give_up("the job was stopped before")
        elif self._warm.waiting and time.monotonic() > self._since + self._limit:
            self._warm.give_up(f"importing took more than {self._limit:g} s")
        if not self._warm.waiting:
            self._start(run)

    def _start(self, run: Supervised) -> None:
        """Starts all ranks. Those of a run that is stopping already die of that, as they would have."""
        seconds = time.monotonic() - self._since
        specs, self._specs = self._specs, ()
        stopping = run.stopping
        plain: list[str] = []

        def start(spec: ProcessSpec) -> tuple[int, int, int]:
            return self._warm.spawn_or_start(spec, plain.append)

        for spec in specs:
            process = run.start_process(spec, start)
            if process is None:
                return
            if stopping:
                send(process.pid, self._stop, group=spec.signal_group)
        if self._once:
            self._warm.dismiss()
        self._tell(len(specs) - len(plain), len(plain), plain[0] if plain else "", round(seconds, 3))


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _MOST_PRINTED + 1)
    except BlockingIOError:
        return b""


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)
