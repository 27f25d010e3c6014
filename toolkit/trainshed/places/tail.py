"""Follows what hosts print into files."""

from __future__ import annotations


class Tail:
    """A file that somebody else appends to, passed on in whole lines."""

    def __init__(self, path: str, error: bool = False) -> None:
        self.path, self.error = path, error
        self.tag = b""
        self.position = 0
        self.pending = b""

    def read(self) -> bytes:
        """Whole lines that have come since, tagged; a file that is not there yet has none."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.position)
                data = file.read(1 << 20)
        except OSError:
            return b""
        self.position += len(data)
        whole, newline, self.pending = (self.pending + data).rpartition(b"\n")
        return self._tagged(whole + newline)

    def rest(self) -> bytes:
        """An unfinished last line."""
        pending, self.pending = self.pending, b""
        return self._tagged(pending + b"\n") if pending else b""

    def _tagged(self, lines: bytes) -> bytes:
        if not self.tag:
            return lines
        return b"".join(
            line if line.startswith(b"[" + self.tag) else b"[" + self.tag + b"] " + line
            for line in lines.splitlines(keepends=True)
        )
