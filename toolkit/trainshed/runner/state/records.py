"""What the hosts themselves say of a run: `train`'s run records and failure files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from trainshed.base.files import read_bytes
from trainshed.contract.outcome import REASON_BYTES, clip

from ..files.run import Host

_LIMIT = 16 << 20


def record_of(host: Host) -> dict[str, Any]:
    """The host's run record; {} if there is none: the image may have another `train`."""
    try:
        value = json.loads(read_bytes(host.record, _LIMIT) or b"{}")
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def failure_of(host: Host) -> str:
    """The first 1,024 bytes of the host's failure file, "" where it has none."""
    try:
        data = read_bytes(host.failure, _LIMIT)
    except (OSError, ValueError):
        return ""
    return clip((data or b"").decode("utf-8", "replace").strip("\0 \n"), REASON_BYTES)


def phases_of(hosts: Iterable[Host]) -> dict[str, float]:
    """Seconds of each phase; where hosts differ, the longest."""
    longest: dict[str, float] = {}
    for host in hosts:
        for phase in record_of(host).get("phases") or []:
            try:
                name, seconds = str(phase["name"]), float(phase["seconds"])
            except (KeyError, TypeError, ValueError):
                continue
            longest[name] = max(seconds, longest.get(name, 0.0))
    return longest
