"""Network interfaces and ports of this host."""

from __future__ import annotations

import os


def interface_to(named: str) -> str:
    """The interface for traffic to the other hosts: the one the platform names if it exists, else the default route's.

    SDK v3's local mode names `ethwe`, which no container has. "" where nothing can be found: then the libraries choose.
    """
    if named in _interfaces():
        return named
    try:
        with open("/proc/net/route") as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return ""
    defaults = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == "00000000"]
    return min(defaults)[1] if defaults else next((row[0] for row in rows if row), "")


def _interfaces() -> list[str]:
    try:
        return os.listdir("/sys/class/net")
    except OSError:
        return []


def free_port(wanted: int) -> int:
    """`wanted` if nobody listens there on loopback, else a port that is free now."""
    import socket  # slow to load; see hosts.py

    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return wanted
