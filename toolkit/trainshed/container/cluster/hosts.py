"""Host names: their order, and waiting until they can be reached by name."""

from __future__ import annotations

import re
import time

from trainshed.contract.errors import ClusterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_NUMBERS = r"([0-9]+)"
SAY_EVERY = 5.0  # seconds between two lines that say what is awaited


def natural_order(hosts: Iterable[str]) -> tuple[str, ...]:
    """Hosts without repeats, numbers in names compared as numbers: algo-2 before algo-10."""

    def key(host: str) -> tuple[list[tuple[bool, int, str]], str]:
        parts = re.split(_NUMBERS, host)
        # Text and numbers take turns, so a number is only ever compared with a number.
        return [(place % 2 == 0, int(part) if place % 2 else 0, part) for place, part in enumerate(parts)], host

    return tuple(sorted(dict.fromkeys(hosts), key=key))


def wait_for_names(hosts: Iterable[str], seconds: float, say: Callable[[str], None]) -> None:
    """Waits until every host name resolves.

    Raises:
        ClusterError: some still do not after `seconds`; names them.
    """
    start = time.monotonic()
    said = start - SAY_EVERY + 1.0  # the first line after one second: most names are there at once
    pause = 0.05
    missing = list(hosts)
    while missing := [host for host in missing if not resolves(host)]:
        waited = time.monotonic() - start
        names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        if waited >= seconds:
            raise ClusterError(
                f"{names}: no such host name, after {waited:.0f} s of waiting",
                hint="the host did not start, died before this one was ready, or is not on this network; "
                "trainshed_host_timeout_seconds sets how long to wait",
            )
        if time.monotonic() - said >= SAY_EVERY:
            said = time.monotonic()
            say(f"waiting for {names}: the name does not resolve yet ({waited:.0f} s of {seconds:.0f} s)")
        time.sleep(min(pause, max(0.0, seconds - waited)))
        pause = min(pause * 2, 1.0)


def resolves(host: str) -> bool:
    """Whether the name has an address."""
    import socket  # slow to load, and jobs on one host never need it

    try:
        socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        return False
    return True
