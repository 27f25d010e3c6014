"""Whether the runner that wrote its identity into a file still lives.

PID, start time and boot tell it from later processes.
"""

from __future__ import annotations

import os
import socket
from typing import Any


def mine() -> dict[str, Any]:
    """The identity of this process."""
    return of(os.getpid())


def of(pid: int) -> dict[str, Any]:
    """The identity of a process of this machine."""
    return {"Pid": pid, "Started": _start_time(pid), "Boot": _boot(), "Machine": socket.gethostname()}


def is_alive(identity: Any) -> bool | None:
    """Whether that process runs; None where only another machine knows."""
    if not isinstance(identity, dict) or type(identity.get("Pid")) is not int or identity["Pid"] <= 1:
        return False
    if identity.get("Boot") != _boot():
        return None if identity.get("Machine") != socket.gethostname() else False
    started = _start_time(identity["Pid"])
    return started != 0 and started == identity.get("Started")


def _start_time(pid: int) -> int:
    """Clock ticks from boot to the process's start, proc(5); 0 where there is none, or only its remains.

    Not psutil's `create_time`: that is a time of day, which moves when the machine's clock is set, while this value
    is compared with one that another process wrote earlier.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return 0 if fields[0] in ("Z", "X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
