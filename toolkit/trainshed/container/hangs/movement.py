"""What /proc tells of a rank: its processes, the CPU time they have used, the bytes they have moved."""

from __future__ import annotations

import os

from trainshed.base.record import Record
from trainshed.machine.processes import descendants

MOST = 256  # processes of a rank that are looked at
IDLE_SHARE = 0.01  # of one CPU: what waiting threads (NCCL's watchdog, progress bars) use at most, several times over
IDLE_SECONDS = 0.05  # some ticks of the kernel's clock
IDLE_BYTES = 1 << 20
# Who waits for one of these spins, or may spin: the CPU time of such a process is no sign of movement.
_SPINNERS = ("libcuda.so", "libmpi.so", "libamdhip64.so", "libnrt.so")


class Rank(Record):
    """A rank's processes; `rank` is None for a program that has none."""

    rank: int | None
    pid: int
    pids: tuple[int, ...]  # the rank's own first, then its descendants


class Reading(Record):
    """What a rank has used up to a moment (`at`, seconds)."""

    at: float
    pids: tuple[int, ...]
    own_cpu: float
    other_cpu: float  # of its descendants
    bytes: int
    spins: bool  # whether its own CPU time says anything


def ranks_below(pid: int, rank: int | None) -> list[Rank]:
    """The ranks that a started process is: itself, or, for a launcher like torchrun's agent, its children with a RANK."""
    below = descendants(pid)[: MOST * 64]
    if rank is None:
        found: list[Rank] = []
        seen: set[int] = set()
        for child in below:
            number = _variable(child, b"RANK") if child not in seen else ""
            if number.isdigit():
                pids = (child, *descendants(child)[:MOST])
                seen.update(pids)
                found.append(Rank(int(number), child, pids))
        if found:
            return found
    return [Rank(rank, pid, (pid, *below[:MOST]))]


def read(rank: Rank, now: float) -> Reading:
    """One look at a rank."""
    own, children = _cpu(rank.pid)
    others = [_cpu(pid) for pid in rank.pids[1:]]
    return Reading(
        at=now,
        pids=rank.pids,
        own_cpu=own,
        other_cpu=children + sum(map(sum, others)),
        bytes=sum(_bytes(pid) for pid in rank.pids),
        spins=_spins(rank.pid),
    )


def moved(before: Reading, after: Reading, *, in_place: bool, waiting: bool) -> bool:
    """Whether a rank did anything between two looks.

    Args:
        in_place: whether it was at the same line both times; unknown for a program without Python stacks, hence False.
        waiting: whether that was in a collective, where gloo sleeps and others spin.
    """
    idle = max(IDLE_SECONDS, IDLE_SHARE * (after.at - before.at))
    own = 0.0 if in_place and (waiting or after.spins) else after.own_cpu - before.own_cpu
    return (
        own > idle
        or abs(after.other_cpu - before.other_cpu) > idle
        or abs(after.bytes - before.bytes) > IDLE_BYTES
        or after.pids != before.pids
    )


def describe(pid: int) -> str:
    """What the kernel says a process is doing: for one that shows no Python stack."""
    state = _stat(pid)[:1]
    words = {
        "S": "waiting",
        "T": "stopped by a signal",
        "t": "stopped by a debugger",
        "D": "waiting for a disk or a driver",
        "Z": "ended",
    }
    waits = _read(f"/proc/{pid}/wchan").strip("0")
    return words.get(state[0] if state else "Z", "running") + (f", in the kernel's {waits}" if waits else "")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command name; empty once it is gone."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _cpu(pid: int) -> tuple[float, float]:
    """Seconds of CPU time: its own, and that of its children that have ended."""
    fields = _stat(pid)
    if len(fields) < 15:
        return 0.0, 0.0
    tick = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / tick, (int(fields[13]) + int(fields[14])) / tick


def _bytes(pid: int) -> int:
    values = dict(line.split(": ") for line in _read(f"/proc/{pid}/io").splitlines() if ": " in line)
    return int(values.get("rchar", 0)) + int(values.get("wchar", 0))


def _spins(pid: int) -> bool:
    maps = _read(f"/proc/{pid}/maps")
    return any(name in maps for name in _SPINNERS)


def _variable(pid: int, name: bytes) -> str:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            values = file.read().split(b"\0")
    except OSError:
        return ""
    found = next((value for value in values if value.startswith(name + b"=")), b"")
    return found.partition(b"=")[2].decode("ascii", "replace")


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
