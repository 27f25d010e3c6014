"""The hosts' own records of a run: `train`'s run records and failure files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from trainshed.base.files import leads_away, read_bytes
from trainshed.contract.outcome import REASON_BYTES, clip
from trainshed.contract.wire.fingerprints import RECORD_KEY
from trainshed.contract.wire.fingerprints import in_shape as in_shape_of_fingerprints

from ..files.run import HostTree

_LIMIT = 16 << 20


def record_of(host: HostTree) -> dict[str, Any]:
    """The host's run record; {} if there is none: the image may have another `train`."""
    if leads_away(host.folder, host.record):
        return {}
    try:
        return in_shape(json.loads(read_bytes(host.record, _LIMIT, links=False) or b"{}"))
    except (OSError, ValueError, RecursionError):
        return {}


def in_shape(record: Any) -> dict[str, Any]:
    """A run record without what is of another kind than `train` writes: anybody may have written it."""
    if not isinstance(record, dict):
        return {}
    good: dict[str, Any] = {name: value for name, value in record.items() if isinstance(value, _SHAPE.get(name, object))}
    for name in ("seconds", "exit_code"):
        if name in good and not _is_count(good[name]):
            del good[name]
    if "phases" in good:
        good["phases"] = [one for one in good["phases"] if isinstance(one, dict) and _is_count(one.get("seconds"))]
    if "cluster" in good:
        kinds = {"hosts": list, "rank": int}
        good["cluster"] = {
            name: value for name, value in good["cluster"].items() if isinstance(value, kinds.get(name, object))
        }
    if "compiler" in good:
        ranks = good["compiler"].get("ranks")
        reports = ranks.items() if isinstance(ranks, dict) else ()
        good["compiler"] = {**good["compiler"], "ranks": {rank: one for rank, one in reports if _is_report(one)}}
    if RECORD_KEY in good:
        good[RECORD_KEY] = in_shape_of_fingerprints(good[RECORD_KEY])
    if "failure" in good:
        texts = ("kind", "summary", "host", "place", "hint")
        good["failure"] = {
            name: value for name, value in good["failure"].items() if name not in texts or isinstance(value, str)
        }
    return good


_SHAPE: dict[str, type] = {
    "phases": list, "cluster": dict, "compiler": dict, "failure": dict, "checkpoints": dict, "job": dict, "state": str,
    RECORD_KEY: dict,
}  # fmt: skip
_LONGEST = 1e11  # seconds; more is no time that a job has run


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < _LONGEST


def _is_report(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("fx_cache") or {}, dict)


def failure_of(host: HostTree) -> str:
    """The first 1,024 bytes of the host's failure file, "" where it has none."""
    if leads_away(host.folder, host.failure):
        return ""
    try:
        data = read_bytes(host.failure, _LIMIT, links=False)
    except (OSError, ValueError):
        return ""
    return clip((data or b"").decode("utf-8", "replace").strip("\0 \n"), REASON_BYTES)


def fingerprints_of(hosts: Iterable[HostTree]) -> dict[str, dict[str, Any]]:
    """The fingerprints of the channels, by channel and host."""
    found: dict[str, dict[str, Any]] = {}
    for host in hosts:
        for channel, one in record_of(host).get(RECORD_KEY, {}).items():
            found.setdefault(channel, {})[host.name] = one
    return found


def phases_of(hosts: Iterable[HostTree]) -> dict[str, float]:
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
