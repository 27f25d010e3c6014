"""The machines of a job: `user@host:port`, as people write them and as ssh takes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What begins with `-` would be an option of ssh. Names of ssh's own configuration may hold more than names of hosts.
_USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HOST = r"[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]"
_ADDRESS = re.compile(rf"(?:({_USER})@)?({_HOST})(?::([0-9]{{1,5}}))?")


@dataclass(frozen=True)
class Address:
    """One machine. text: as the job names it; destination: what ssh is given; port: 0 for what ssh's configuration says."""

    text: str
    destination: str
    port: int = 0

    @property
    def host(self) -> str:
        """The machine without the user."""
        return self.destination.rpartition("@")[2]


def wrong_with(text: str) -> tuple[str, str]:
    """(what is wrong with a machine's name, what to do); two times "" where it is good."""
    match = _ADDRESS.fullmatch(text)
    if "://" in text:
        return "is an address of another kind", "write user@host, user@host:port or a name of your ~/.ssh/config"
    if match is None:
        hint = "write user@host, user@host:port or a name of your ~/.ssh/config"
        if text.count(":") > 1:
            hint = "an IPv6 address stands in brackets: user@[fd00::1]:2222"
        return "is not a machine that ssh can reach", hint
    if match[3] and not 0 < int(match[3]) < 65536:
        return "has no valid port", "ports are 1 to 65535"
    return "", ""


def parse(text: str) -> Address:
    """The machine of a name that `wrong_with` finds nothing wrong with. Raises ValueError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or wrong_with(text)[0]:
        raise ValueError(text)
    user, host, port = match.groups()
    name = host.strip("[]")
    return Address(text, f"{user}@{name}" if user else name, int(port or 0))
