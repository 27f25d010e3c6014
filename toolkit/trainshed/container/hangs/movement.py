"""The kernel's facts about a rank: its processes, the CPU time they have used, the bytes they have read and written.

psutil reads what it can, and is imported only when ranks are looked at. By hand remain the memory map (psutil would read
`smaps`, for which the kernel walks all pages) and the kernel function in which a process waits (psutil has none).
"""

from __future__ import annotations

from trainshed.base.record import Record
from trainshed.machine.processes import descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    import psutil

MOST = 256  # processes of a rank that are looked at
IDLE_SHARE = 0.01  # of one CPU: several times what waiting threads (NCCL's watchdog, progress bars) use at most
IDLE_SECONDS = 0.05  # some ticks of the kernel's clock
IDLE_BYTES = 1 << 20
# A process that waits for one of these may spin, so that its CPU time is no sign of movement.
_SPINNERS = ("libcuda.so", "libmpi.so", "libamdhip64.so", "libnrt.so")
_STATES = {
    "sleeping": "waiting",
    "stopped": "stopped by a signal",
    "tracing-stop": "stopped by a debugger",
    "disk-sleep": "waiting for a disk or a driver",
    "zombie": "ended",
    "dead": "ended",
}


class RankProcesses(Record):
    """A rank's processes.

    rank: its number, None for a program without ranks.
    pids: the rank's process first, then its descendants.
    """

    rank: int | None
    pid: int
    pids: tuple[int, ...]


class RankUsage(Record):
    """The resources that a rank had used up to a moment.

    at: the moment, in seconds.
    own_cpu, other_cpu: seconds of CPU time of its process, and of all its descendants.
    bytes: read and written by all of them.
    spins: whether its process may spin while it waits.
    own_ready, other_ready: whether its process, or a descendant, runs or would if a CPU were free for it.
    """

    at: float
    pids: tuple[int, ...]
    own_cpu: float
    other_cpu: float
    bytes: int
    spins: bool
    own_ready: bool = False
    other_ready: bool = False


class _Usage(Record):
    """What one process has used: seconds of CPU time, those of its ended children, bytes read and written.

    ready: whether it runs, or would if a CPU were free for it.
    """

    cpu: float = 0.0
    children_cpu: float = 0.0
    bytes: int = 0
    ready: bool = False


def ranks_below(pid: int, rank: int | None) -> list[RankProcesses]:
    """The ranks that a started process is: itself, or, for a launcher like torchrun's agent, its children with a RANK."""
    below = descendants(pid)[: MOST * 64]
    if rank is None:
        ranks: list[RankProcesses] = []
        seen: set[int] = set()
        for child in below:
            number = _rank_variable(child) if child not in seen else ""
            if number.isdigit():
                pids = (child, *descendants(child)[:MOST])
                seen.update(pids)
                ranks.append(RankProcesses(int(number), child, pids))
        if ranks:
            return ranks
    return [RankProcesses(rank, pid, (pid, *below[:MOST]))]


def read(rank: RankProcesses, now: float) -> RankUsage:
    """Reads what a rank has used so far."""
    own, *others = (_usage(pid) for pid in rank.pids)
    return RankUsage(
        at=now,
        pids=rank.pids,
        own_cpu=own.cpu,
        other_cpu=own.children_cpu + sum(usage.cpu + usage.children_cpu for usage in others),
        bytes=own.bytes + sum(usage.bytes for usage in others),
        spins=_spins(rank.pid),
        own_ready=own.ready,
        other_ready=any(usage.ready for usage in others),
    )


def moved(before: RankUsage, after: RankUsage, *, in_place: bool, waiting: bool) -> bool:
    """Returns whether a rank did anything between two looks, or would have if a CPU had been free for it.

    Args:
        in_place: whether it was at the same line both times; False for a program without Python stacks.
        waiting: whether that was in a collective, where gloo sleeps and others spin.
    """
    idle = max(IDLE_SECONDS, IDLE_SHARE * (after.at - before.at))
    may_spin = in_place and (waiting or after.spins)
    return (
        (not may_spin and (after.own_ready or after.own_cpu - before.own_cpu > idle))
        or after.other_ready
        or abs(after.other_cpu - before.other_cpu) > idle
        or abs(after.bytes - before.bytes) > IDLE_BYTES
        or after.pids != before.pids
    )


def describe(pid: int) -> str:
    """Reads from the kernel what a process is doing, for one that shows no Python stack."""
    import psutil

    try:
        state = psutil.Process(pid).status()
    except psutil.Error:
        state = "dead"
    waits_in = _read(f"/proc/{pid}/wchan").strip("0")
    return _STATES.get(state, "running") + (f", in the kernel's {waits_in}" if waits_in else "")


def _usage(pid: int) -> _Usage:
    """What a process has used; zeros for one that has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        times, ready = process.cpu_times(), process.status() == psutil.STATUS_RUNNING
    except psutil.Error:
        return _Usage()
    return _Usage(times.user + times.system, times.children_user + times.children_system, _bytes(process), ready)


def _bytes(process: psutil.Process) -> int:
    """Bytes read and written, through pipes and caches, too; 0 where the kernel does not say."""
    import psutil

    try:
        counters = process.io_counters()
    except (psutil.Error, NotImplementedError, RuntimeError):
        return 0
    return int(counters.read_chars + counters.write_chars)


def _rank_variable(pid: int) -> str:
    """The variable RANK with which a process was started, "" without one."""
    import psutil

    try:
        return psutil.Process(pid).environ().get("RANK", "")
    except psutil.Error:
        return ""


def _spins(pid: int) -> bool:
    maps = _read(f"/proc/{pid}/maps")
    return any(name in maps for name in _SPINNERS)


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
