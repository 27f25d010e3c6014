"""From a host's pipe to the screen, to its log file and to the metrics: whole lines, tagged with the host."""

from __future__ import annotations

import os
from typing import BinaryIO

from trainshed.base.secrets import longest_first, mask_bytes, to_bytes
from trainshed.machine.streams import read_block

from ..files.metrics import Metrics
from .screen import Screen

LONGEST_LINE = 1 << 20  # a longer one is passed on in pieces


class HostStream:
    """One of the two pipes of a host.

    Args:
        tag: host name put before each line, "" on a single host. Lines that `train` has tagged with a rank stay as they are.
        log: open file that takes every line, shared by both pipes of the host.
        secrets: what is blanked out, with all that looks like one, on the screen and in the log.
    """

    def __init__(
        self,
        fd: int,
        screen: Screen,
        metrics: Metrics,
        tag: str,
        log: BinaryIO,
        *,
        error: bool,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.fd, self.screen, self.metrics, self.log, self.error = fd, screen, metrics, log, error
        self.tag = tag.encode()
        self.secrets = tuple(map(to_bytes, longest_first(secrets)))
        # Of a line that is passed on in pieces so much is kept back: a secret may have begun there.
        self.begun = max((len(secret) - 1 for secret in self.secrets), default=0)
        self.log_problem = ""
        self.pending = b""
        self.open = True
        os.set_blocking(fd, False)

    def read(self) -> int:
        """Reads one block; returns its bytes, 0 when nothing waits or the pipe has ended."""
        if not self.open:
            return 0
        block = read_block(self.fd)
        if not block:
            if block is not None:
                self.close()
            return 0
        data = self.pending + block if self.pending else block
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) < LONGEST_LINE:
            self.pending = data
            return len(block)
        if cut:
            self.pending = data[cut:]
            self._pass_on(data[:cut])
        else:
            data = mask_bytes(data, self.secrets)
            cut = max(1, len(data) - self.begun)
            self.pending = data[cut:]
            self._pass_on(data[:cut], b"\n")
        return len(block)

    def close(self) -> None:
        """Passes on an unfinished last line; the pipe itself is its process's to close."""
        if self.open and self.pending:
            self._pass_on(self.pending, b"\n")
        self.open, self.pending = False, b""

    def _keep(self, block: bytes) -> None:
        """Appends to the log. A full disk costs the rest of the log, never the job: a log with holes would mislead."""
        if self.log_problem:
            return
        try:
            view = memoryview(block)
            while view:
                view = view[self.log.write(view) :]
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is closed"
            self.log_problem = f"the log {self.log.name} ends early: {why}"

    def _pass_on(self, lines: bytes, end: bytes = b"") -> None:
        """Passes lines on, masked: as they are to the log, and with `end` to the screen, where a line ends that was cut."""
        lines = mask_bytes(lines, self.secrets)
        self._keep(lines)
        lines += end
        self.metrics.scan(lines)
        try:
            lines.decode()
        except UnicodeDecodeError:
            lines = lines.decode("utf-8", "backslashreplace").encode()
        if b"\r" in lines:  # `train` has done this already; other programs' progress bars have not
            lines = b"".join(line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n" for line in lines[:-1].split(b"\n"))
        if self.tag:
            lines = b"".join(
                line if line.startswith(b"[" + self.tag) else b"[" + self.tag + b"] " + line
                for line in lines.splitlines(keepends=True)
            )
        self.screen.lines(lines, error=self.error)
