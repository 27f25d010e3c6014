"""Connections of the page's server: those that ask for nothing end, and give way to whoever has the token.

Every user of this machine can connect, and all of them come from one address. So a limit for each address would be one for
the page's owner, too: what counts is whether a connection's request held the token (`guard` and tickets mark it so).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0  # for a request to come whole; and for all that is done without the token
MOST = 200  # connections at once, of which the oldest without the token goes when one more comes
BACKLOG = 128  # connections that are taken in one turn; with `MOST` below the usual limit of open files, 1,024


def mark_as_proven(scope: Any) -> None:
    """Notes that a request holds the token, or what the token has bought."""
    scope.setdefault("state", {})["proven"] = True


class Connection(H11Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes it, where there are too many in the place of another one."""
        super().connection_made(transport)
        self.since = self.loop.time()  # when it last began to wait for a request
        self.loop.call_later(SECONDS, self._look)
        if len(self.connections) > MOST:
            held: set[Any] = self.connections
            oldest = min((one for one in held if not one.is_proven), key=lambda one: one.since, default=self)
            held.discard(oldest)
            oldest.transport.abort()

    @property
    def is_proven(self) -> bool:
        """Whether its last request held the token."""
        return self.scope is not None and "proven" in self.scope["state"]

    def on_response_complete(self) -> None:
        """The next request may come."""
        self.since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        """Ends it where it has waited for long enough."""
        if self.transport.is_closing():
            return
        answered = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if answered and self.is_proven:
            self.since = self.loop.time()
        left = self.since + SECONDS - self.loop.time()
        if left > 0:
            self.loop.call_later(left, self._look)
        else:
            self.transport.abort()
