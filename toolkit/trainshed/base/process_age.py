"""When this process was started."""

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
