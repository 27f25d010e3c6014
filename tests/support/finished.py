"""How a program ended that a test has run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finished:
    """Its exit status (of a container 128 + signal where one ended it) and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, for messages and for searching."""
        return self.stdout + self.stderr
