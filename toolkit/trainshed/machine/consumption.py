"""Measures what CPUs, memory, disks, network and processes of this machine have consumed so far, from /proc (proc(5)).

By hand, without psutil: a sampler beside every job must be small. Measured for `benchmarks/observe.py`, psutil takes five
more MiB and three times the CPU time for the same numbers.
"""

from __future__ import annotations

import os

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TICKS = os.sysconf("SC_CLK_TCK")  # a second, of all CPU times
PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes
_SECTOR = 512  # bytes; the kernel counts in these, whatever the disk's own are
_NO_DISKS = ("loop", "ram", "zram", "sr", "fd", "dm-", "md")  # the last two stand for disks that are counted themselves


class Cores(Record):
    """CPU time since the machine's start, in ticks.

    busy, total: by core. waiting: of all cores, idle while a disk is at work.
    """

    busy: dict[int, int]
    total: dict[int, int]
    waiting: int


def cores() -> Cores:
    """Of the machine's cores that are online; none where /proc does not tell."""
    busy: dict[int, int] = {}
    total: dict[int, int] = {}
    waiting = 0
    for words in _rows("/proc/stat"):
        if not words[0].startswith(b"cpu"):
            break  # cores come first
        if not words[0][3:].isdigit():  # the sum of all
            waiting = int(words[5])
            continue
        times = [int(word) for word in words[1:9]]  # guests' time is in user's already
        core = int(words[0][3:])
        total[core] = sum(times)
        busy[core] = total[core] - times[3] - times[4]
    return Cores(busy, total, waiting)


def memory_used() -> tuple[int, int]:
    """(used, all) bytes of the machine's memory; what can be had back at once is not used. (0, 0) if unknown."""
    found = {
        words[0]: int(words[1]) << 10 for words in _rows("/proc/meminfo") if words[0] in (b"MemTotal:", b"MemAvailable:")
    }
    if len(found) != 2:
        return 0, 0
    return found[b"MemTotal:"] - found[b"MemAvailable:"], found[b"MemTotal:"]


def disks() -> dict[str, tuple[int, int]]:
    """Bytes (read, written) since the machine's start, by disk; partitions are in their disk's."""
    found: dict[str, tuple[int, int]] = {}
    last = ""
    for words in _rows("/proc/diskstats"):
        name = words[2].decode("ascii", "replace")
        if name.startswith(_NO_DISKS) or (last and _is_partition(name, last)):
            continue
        last = name
        found[name] = (int(words[5]) * _SECTOR, int(words[9]) * _SECTOR)
    return found


def _is_partition(name: str, disk: str) -> bool:
    """Whether `sda1` is of `sda`, `nvme0n1p1` of `nvme0n1`."""
    start = f"{disk}p" if disk[-1].isdigit() else disk
    return name.startswith(start) and name[len(start) :].isdigit()


def interfaces() -> dict[str, tuple[int, int]]:
    """Bytes (received, sent) since the machine's start, by network interface, without the loopback."""
    found = {}
    for words in _rows("/proc/net/dev", skip=2):
        name, _, first = words[0].partition(b":")  # old kernels leave no space after it
        numbers = [*([first] if first else []), *words[1:]]
        if name != b"lo" and len(numbers) >= 9:
            found[name.decode("ascii", "replace")] = (int(numbers[0]), int(numbers[8]))
    return found


class Consumed(Record):
    """One process. started: when, in ticks since the machine's start. ticks: of CPU time. resident: bytes."""

    started: int
    ticks: int
    resident: int


def process(pid: int) -> Consumed | None:
    """None for one that has ended or is another user's secret."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        return Consumed(int(words[19]), int(words[11]) + int(words[12]), int(words[21]) * PAGE)
    except (OSError, ValueError, IndexError):
        return None


def _rows(path: str, skip: int = 0) -> Iterator[list[bytes]]:
    """The words of each line; nothing where the file cannot be read."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines[skip:]:
        if words := line.split():
            yield words
