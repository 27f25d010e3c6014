"""Limits of this process's control group, for versions 1 and 2 of the kernel's interface (cgroups(7))."""

from __future__ import annotations

import os

_ROOT = "/sys/fs/cgroup"


def _files(controller: str, v1_name: str, v2_name: str) -> list[str]:
    """Files that may hold a value, nearest group first. Inside a container the group's path is mostly the root."""
    places = []
    try:
        with open("/proc/self/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if not controllers:
                    places += [f"{_ROOT}{path.rstrip('/')}/{v2_name}", f"{_ROOT}/{v2_name}"]
                elif controller in controllers.split(","):
                    places += [f"{_ROOT}/{controller}{path.rstrip('/')}/{v1_name}", f"{_ROOT}/{controller}/{v1_name}"]
    except (OSError, ValueError):
        pass
    return places


def _read(controller: str, v1_name: str, v2_name: str) -> str:
    for path in _files(controller, v1_name, v2_name):
        try:
            with open(path) as file:
                return file.read()
        except OSError:
            continue
    return ""


def cpu_limit() -> float | None:
    """CPUs that the quota allows; None without a quota."""
    try:
        v2 = _read("cpu", "", "cpu.max").split()
        if len(v2) == 2:
            return None if v2[0] == "max" else int(v2[0]) / int(v2[1])
        quota = int(_read("cpu", "cpu.cfs_quota_us", "") or -1)
        period = int(_read("cpu", "cpu.cfs_period_us", "") or 0)
        return quota / period if quota > 0 and period > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def memory_limit() -> int | None:
    """Bytes that the group may use; None without a limit."""
    text = _read("memory", "memory.limit_in_bytes", "memory.max").strip()
    limit = int(text) if text.isdigit() else 0
    return limit if 0 < limit < 1 << 60 else None


def memory_used() -> int | None:
    """Bytes that the group uses, without files that the kernel may drop; None where it does not tell."""
    used = _read("memory", "memory.usage_in_bytes", "memory.current").strip()
    if not used.isdigit():
        return None
    dropped = 0
    for line in _read("memory", "memory.stat", "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            dropped = max(dropped, int(value))  # version 1 has both, the second with the groups below
    return max(0, int(used) - dropped)


def oom_kills() -> int:
    """How many processes of the group the kernel has killed for memory so far."""
    for line in _read("memory", "memory.oom_control", "memory.events").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return 0


def cpus() -> int:
    """CPUs that this process may use, by affinity mask and quota; at least 1."""
    available = len(os.sched_getaffinity(0))
    limit = cpu_limit()
    return max(1, available if limit is None else min(available, -int(-limit // 1)))
