"""A probe: a job that makes a few training steps, tells how much memory they took, and ends (`--find-batch-size`)."""

from __future__ import annotations

import json

from trainshed.base.record import Record

from .variables import PROBE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Probe(Record):
    """What a rank is told.

    steps: optimizer steps to make.
    folder: where its answer goes, `<host>.rank<rank>.json` with peak_bytes and limit_bytes.
    limit_bytes: a rank's part of the host's memory, where it trains on no GPU.
    """

    steps: int
    folder: str
    host: str
    limit_bytes: int

    def to_text(self) -> str:
        """The variable's value."""
        return json.dumps(self.plain(), sort_keys=True)


def probe_of(environ: Mapping[str, str]) -> Probe | None:
    """What this rank is told, None where it is no probe."""
    try:
        value = json.loads(environ.get(PROBE) or "null")
        return Probe(**value) if isinstance(value, dict) else None
    except (ValueError, TypeError):
        return None
