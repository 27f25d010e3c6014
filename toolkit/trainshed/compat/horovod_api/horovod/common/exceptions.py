"""Horovod's exceptions."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation failed on all ranks that take part in it; the message names the tensor and the reason."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts came or went. Never raised here: the ranks of a job are those that it started with."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts came or went")
        self.skip_sync = skip_sync
