"""TCP ports for one test, which nobody else on this machine gets by chance."""

from __future__ import annotations

import random
import socket

# Below the range from which the kernel gives ports to outgoing connections (32768 and up on Linux): a port from there may
# be taken between the look and the use, and a client that tries before the server listens may even connect to itself.
LOWEST, HIGHEST = 10_000, 32_000
_RANDOM = random.SystemRandom()


def free_ports(count: int = 1) -> int:
    """The first of `count` successive ports on which nobody listens."""
    while True:
        port = _RANDOM.randrange(LOWEST, HIGHEST - count)
        if all(_is_free(port + number) for number in range(count)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
