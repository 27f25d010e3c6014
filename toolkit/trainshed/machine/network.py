"""Network interfaces and ports of this host."""

from __future__ import annotations

import os

# Below the range from which the kernel takes ports for outgoing connections (32768 and up on Linux). A port from there may
# be taken between the look and the use, and a process that connects before anything listens may be connected to itself.
_LOWEST, _HIGHEST = 10_000, 32_000


def interface_to(named: str) -> str:
    """The interface for traffic to the other hosts: the one the platform names if it exists, else the default route's.

    SDK v3's local mode names `ethwe`, which containers do not have. "" if there is no route: then the libraries choose.
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
    """`wanted` if it is free, else a port that is free now; `wanted` 0 means any."""
    import socket  # slow to load; see hosts.py

    spread = (_LOWEST + int.from_bytes(os.urandom(4), "big") % (_HIGHEST - _LOWEST) for _ in range(32))
    for port in (*([wanted] if wanted else []), *spread, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return wanted


def addresses_of(interface: str) -> list[str]:
    """The IP addresses of an interface, without those of one link only (fe80::...), which need no host to have them.

    [] where they cannot be found out: in an image to which trainshed was mounted, without the packages that it needs.
    """
    import socket

    try:
        import psutil
    except ImportError:
        return []
    rows = psutil.net_if_addrs().get(interface, [])
    found = [str(row.address) for row in rows if row.family in (socket.AF_INET, socket.AF_INET6)]
    return [address for address in found if "%" not in address and not address.startswith("fe80:")]
