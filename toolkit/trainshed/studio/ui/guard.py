"""Who may ask: whoever has a token, from a page of ours, under a name of this machine or of the proxy before it.

The token is in the part of the address that browsers send nowhere (`#token=...`); the page keeps it and sends it in a
header, so no other site's page can ask in the person's name (there is no cookie), and no other server here gets it.
A page of another site whose name was made to lead here (DNS rebinding) sends its own name as `Host`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from .connection import mark_as_proven
from .entry import Access

LONGEST_BODY = 1 << 20  # bytes of a request
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware around the whole application.

    Args:
        entry: what `Authorization: Bearer ...` must hold for everything below /api.
    """

    def __init__(self, app: Any, entry: Access) -> None:
        self._app = app
        self._entry = entry

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no WebSockets here
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        status, why = self._refusal(scope)
        if status:
            await JSONResponse({"error": why}, status)(scope, receive, guarded)
            return
        with suppress(ClientDisconnect):  # whoever left in the middle of a request has nobody to answer to
            await self._app(scope, receive, guarded)

    def _refusal(self, scope: Any) -> tuple[int, str]:
        """(status, why) of a request that is not served, (0, "") for one that is."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._entry.knows(host):
            return 421, "this address is not one of this server's: use http://127.0.0.1 or http://localhost"
        origin = headers.get("origin")
        if origin is not None and not self._entry.is_own(origin, host):
            return 403, "a page of another site may not ask"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "a page of another site may not ask"
        if scope["path"].startswith("/api/"):
            kind, _, given = headers.get("authorization", "").partition(" ")
            acts = self._entry.acts(given) if kind == "Bearer" else None
            if acts is None:
                return 401, "the token is missing or wrong: use the address that `trainshed ui` printed"
            mark_as_proven(scope)
            scope["state"]["acts"] = acts
        if scope["method"] not in ("GET", "HEAD"):
            if headers.get("content-type", "").partition(";")[0] != "application/json":
                return 415, "requests hold JSON"
            length = headers.get("content-length", "")
            if not length.isdecimal() or int(length) > LONGEST_BODY:
                return 413, "the request is too large"
        return 0, ""
