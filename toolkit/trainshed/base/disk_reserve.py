"""Disk space reserved for the report of a job that fills the disk."""

from __future__ import annotations

import os

ROOM_BYTES = 1 << 17  # the failure file and the run record take a fifth of it


class Room:
    """Reserves disk space in a folder from construction to `free`, in an unlinked file, which leaves nothing behind."""

    def __init__(self, folder: str) -> None:
        self.fd = -1
        name = f"{folder}/.room-{os.getpid()}"
        try:
            self.fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.unlink(name)
            os.write(self.fd, bytes(ROOM_BYTES))
        except OSError:  # full already, or read-only: nothing can be reserved
            pass

    def free(self) -> None:
        """Frees the disk space; safe to call again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
