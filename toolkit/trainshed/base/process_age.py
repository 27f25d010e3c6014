"""When this process was started, and in which start of the machine."""

from __future__ import annotations

import os
import time


def process_began() -> float:
    """Seconds since 1970, after proc(5): in ticks since the machine's start; now, where that is not known."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()
    return time.time() - max(0.0, age)


def boot_id() -> str:
    """Tells one start of the machine from another, after random(4); "" where that is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
