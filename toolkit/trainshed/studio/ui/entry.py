"""Who gets in: by which tokens, under which names of the server, from which pages."""

from __future__ import annotations

import hmac

from trainshed.base.record import Record

NAMES = ("127.0.0.1", "localhost", "[::1]")


class Access(Record):
    """Who gets in.

    token: of who may act, "" for nobody. looks: of who may only look, "" for nobody.
    behind: the address under which a reverse proxy shows the page, "" for none.
    """

    token: str = ""
    looks: str = ""
    behind: str = ""

    def acts(self, given: str) -> bool | None:
        """Whether a token lets act; None where it lets nobody in."""
        found = {acts: hmac.compare_digest(given.encode(), one.encode()) for acts, one in self._tokens() if one}
        return next((acts for acts, good in found.items() if good), None)

    def _tokens(self) -> tuple[tuple[bool, str], ...]:
        return (True, self.token), (False, self.looks)

    def knows(self, host: str) -> bool:
        """Whether a `Host` is this machine's, or the proxy's."""
        return host_name(host) in NAMES or (bool(host) and host == self._origin.partition("://")[2])

    def is_own(self, origin: str, host: str) -> bool:
        """Whether an `Origin` is that of a page of ours."""
        return origin.partition("://")[2] == host or (bool(origin) and origin == self._origin)

    @property
    def _origin(self) -> str:
        return "/".join(self.behind.split("/", 3)[:3])


def host_name(host: str) -> str:
    """The name in a `Host` header, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
