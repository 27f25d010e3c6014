"""An S3 between a program and the real one that stops giving: errors, silence, bodies that are cut off."""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HELD = ("range", "if-match", "if-none-match", "x-amz-checksum-mode")  # headers that mean something to the server


class FaultyS3:
    """A proxy whose faults a test sets.

    environment: the variables that lead programs to it.
    fault: what happens to each GET of an object whose path and Range header have `of` in them: "" for nothing, "503",
        "403", "stall" (headers, then silence until the proxy ends), "cut" (half of the body, then no connection).
    times: how often it happens; -1 for always.
    ranges: (path, Range header) of each GET. gets: their number by path.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.there = environment["AWS_ENDPOINT_URL_S3"].removeprefix("http://")
        self.fault, self.of, self.times = "", "", -1
        self.gets: Counter[str] = Counter()
        self.ranges: list[tuple[str, str]] = []
        self.over = threading.Event()
        self.met = threading.Event()
        handler = type("Handler", (_Handler,), {"faulty": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        host, port = self.server.server_address[:2]
        self.environment = {**environment, "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}"}

    def meets(self, path: str, bytes_asked: str) -> str:
        """The fault of this GET."""
        self.gets[path] += 1
        if not self.fault or self.of not in f"{path} {bytes_asked}" or self.times == 0:
            return ""
        self.times -= 1
        self.met.set()
        return self.fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faulty: FaultyS3

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        listing = "list-type" in self.path or path.count("/") < 2 or path.endswith("/")
        if not listing:
            self.faulty.ranges.append((path, self.headers.get("Range", "")))
        fault = "" if listing else self.faulty.meets(path, self.headers.get("Range", ""))
        if fault in ("503", "403"):
            text = {"503": "SlowDown", "403": "AccessDenied"}[fault]
            body = f"<Error><Code>{text}</Code><Message>not now</Message></Error>".encode()
            self._answer(int(fault), {"Content-Type": "application/xml"}, body)
            return
        status, headers, body = self._asked()
        if fault in ("stall", "cut"):
            sent = b"" if fault == "stall" else body[: len(body) // 2]
            self._answer(status, headers, sent, length=len(body))
            self.wfile.flush()
            if fault == "stall":
                self.faulty.over.wait(300)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(status, headers, body)

    def do_HEAD(self) -> None:
        status, headers, _ = self._asked()
        self._answer(status, headers, b"", length=int(headers.get("content-length", 0)))

    def _asked(self) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.faulty.there, timeout=60)
        sent = {name: self.headers[name] for name in HELD if name in self.headers}
        connection.request(
            self.command, self.path, headers={**sent, "Host": self.faulty.there, "Authorization": self._signed()}
        )
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body

    def _signed(self) -> str:
        return self.headers.get("Authorization", "")

    def _answer(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def faulty_s3(environment: dict[str, str]) -> Iterator[FaultyS3]:
    """A proxy before the S3 that the variables lead to."""
    faulty = FaultyS3(environment)
    thread = threading.Thread(target=faulty.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield faulty
    finally:
        faulty.over.set()
        faulty.server.shutdown()
        faulty.server.server_close()
        thread.join()
