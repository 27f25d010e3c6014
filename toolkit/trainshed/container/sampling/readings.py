"""The values of one sample of this host: differences of what it has consumed at two moments."""

from __future__ import annotations

import os
import time

from trainshed.base.record import Record
from trainshed.machine import cgroup, consumption
from trainshed.machine.processes import descendants
from trainshed.observe.system import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.observe.system import Value

MOST_PROCESSES = 256  # of a job that are sampled one by one
_LOOK_SECONDS = 2.0  # between two looks for new processes, at least
_LOOK_SHARE = 1000.0  # a look is followed by a pause of so many times its own length


class _Look(Record):
    """What had been consumed at one moment, by time.monotonic()."""

    time: float
    cores: consumption.Cores
    disks: dict[str, tuple[int, int]]
    interfaces: dict[str, tuple[int, int]]
    processes: dict[int, consumption.Consumed]


class Readings:
    """Measures from call to call.

    Args:
        root: the process below which all of the job's processes are.
        names: of the processes that `train` has started, by PID.
        memory_limit: bytes that this job may use; 0 without a limit of its own.
    """

    def __init__(self, root: int, names: Mapping[int, str], memory_limit: int) -> None:
        self._root = root
        self._known = dict(names)
        self._memory_limit = memory_limit
        self._own = os.sched_getaffinity(0)
        self._names: dict[int, str] = {}  # of processes, by PID
        self._next_look = 0.0
        self._last = self._look()

    def take(self) -> list[Value]:
        """Returns what was used since the last call, and the memory that is used now."""
        before, now = self._last, self._look()
        self._last = now
        seconds = max(1e-3, now.time - before.time)
        values = _of_cores(before.cores, now.cores, self._own)
        values += self._of_memory()
        for kind, names, old, new in (
            ("i/o", ("ReadThroughputInBytesPerSecond", "WriteThroughputInBytesPerSecond"), before.disks, now.disks),
            ("network", ("ReceiveBytesPerSecond", "TransmitBytesPerSecond"), before.interfaces, now.interfaces),
        ):
            for one, amounts in new.items():
                if not any(amounts):  # never used
                    continue
                for name, amount, earlier in zip(names, amounts, old.get(one, amounts), strict=True):
                    values.append((kind, plain(one), name, max(0, amount - earlier) / seconds))
        for pid, consumed in now.processes.items():
            name, old_one = self._names[pid], before.processes.get(pid)
            if old_one is not None and old_one.started == consumed.started:
                used = (consumed.ticks - old_one.ticks) / consumption.TICKS / seconds
                values.append(("process", name, "CPUUtilization", 100.0 * used))
            values.append(("process", name, "MemoryUsedBytes", float(consumed.resident)))
        return values

    def _look(self) -> _Look:
        if time.monotonic() >= self._next_look:
            self._find_processes()
        processes = {pid: found for pid in self._names if (found := consumption.process(pid)) is not None}
        return _Look(time.monotonic(), consumption.cores(), consumption.disks(), consumption.interfaces(), processes)

    def _of_memory(self) -> list[Value]:
        used, size = consumption.memory_used()
        limited = cgroup.memory_used() if 0 < self._memory_limit < size else None
        if limited is not None:
            used, size = limited, self._memory_limit
        if not size:
            return []
        return [
            ("memory", "memory", "MemoryUsedPercent", 100.0 * used / size),
            ("memory", "memory", "MemoryUsedBytes", float(used)),
        ]

    def _find_processes(self) -> None:
        """Looks which processes the job has; seldom, since each of their threads has to be asked."""
        start = time.monotonic()
        own = {os.getpid(), *descendants()}  # nvidia-smi
        found = [pid for pid in descendants(self._root) if pid not in own][:MOST_PROCESSES]
        self._names = {pid: self._names.get(pid) or self._name(pid) for pid in found}
        self._next_look = time.monotonic() + max(_LOOK_SECONDS, _LOOK_SHARE * (time.monotonic() - start))

    def _name(self, pid: int) -> str:
        """`rank0` for a rank, `rank0/PID` for what a rank has started, else the program's name and PID."""
        if pid in self._known:
            return self._known[pid]
        program, rank, parent_rank = _of_process(pid)
        if not rank:
            return f"{plain(program)}/{pid}"
        return f"rank{rank}/{pid}" if parent_rank == rank else f"rank{rank}"


def _of_process(pid: int) -> tuple[str, str, str]:
    """A process's program, its RANK, and its parent's RANK; "" for what is not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
        program = head.partition(b"(")[2].decode("ascii", "replace")
        return program, _rank_of(pid), _rank_of(int(rest.split()[1]))
    except (OSError, ValueError, IndexError):
        return "", "", ""


def _rank_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    rank = next((one[5:] for one in variables if one.startswith(b"RANK=")), b"")
    return rank.decode() if rank.isdigit() else ""


def _of_cores(before: consumption.Cores, now: consumption.Cores, own: set[int]) -> list[Value]:
    values: list[Value] = []
    all_busy = all_total = 0
    for core in sorted(own & before.total.keys() & now.total.keys()):
        busy, total = now.busy[core] - before.busy[core], now.total[core] - before.total[core]
        all_busy, all_total = all_busy + busy, all_total + total
        values.append(("cpu", f"cpu{core}", "CPUUtilization", _per_cent(busy, total)))
    if values:
        values.append(("cpu", "cpus", "CPUUtilization", _per_cent(all_busy, all_total)))
        machine = sum(now.total.values()) - sum(before.total.values())
        values.append(("i/o", "i/o", "I/OWaitPercentage", _per_cent(now.waiting - before.waiting, machine)))
    return values


def _per_cent(part: int, whole: int) -> float:
    return 100.0 * min(max(part, 0), whole) / whole if whole > 0 else 0.0
