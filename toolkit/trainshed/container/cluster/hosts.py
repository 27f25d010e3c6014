"""Host names: their order, and whether they can be found."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBERS = r"([0-9]+)"


def natural_order(hosts: Iterable[str]) -> tuple[str, ...]:
    """Hosts without repeats, numbers in names compared as numbers: algo-2 before algo-10."""
    unique = tuple(dict.fromkeys(hosts))
    if len(unique) < 2:
        return unique
    import re

    def key(host: str) -> tuple[list[tuple[bool, int, str, str]], str]:
        parts = re.split(_NUMBERS, host)
        # Text and numbers take turns, so a number is only ever compared with a number: the longer one is greater.
        return [_part(place % 2 == 1, part) for place, part in enumerate(parts)], host

    return tuple(sorted(unique, key=key))


def resolves(host: str) -> bool:
    """Returns whether the name has an address."""
    import socket  # slow to load, and jobs on one host never need it

    try:
        socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        return False
    return True


def _part(number: bool, text: str) -> tuple[bool, int, str, str]:
    digits = text.lstrip("0") if number else ""
    return not number, len(digits), digits, text
