"""One small GET or PUT against a metadata service: no proxies, no redirects, short waits."""

from __future__ import annotations

import http.client

from trainshed.base.record import Record

SECONDS = 2.0  # for an answer, unless the question says otherwise


class Reply(Record):
    """A service's answer; `body` is at most 64 KiB of it."""

    status: int
    body: str
    etag: str = ""


def ask(
    endpoint: str, path: str, headers: dict[str, str] | None = None, *, method: str = "GET", timeout: float | None = None
) -> Reply:
    """Asks `endpoint` (`http://host:port`, `host:port` or `host`).

    Raises:
        OSError: there is no service, or it does not answer in `timeout` (or `SECONDS`) seconds.
    """
    host = endpoint.removeprefix("http://").strip("/")
    connection = http.client.HTTPConnection(host, timeout=timeout or SECONDS)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        body = response.read(1 << 16).decode("utf-8", "replace")
        return Reply(status=response.status, body=body, etag=response.getheader("ETag") or "")
    except http.client.HTTPException as error:
        raise OSError(f"no usable answer from {host}: {type(error).__name__}") from error
    finally:
        connection.close()
