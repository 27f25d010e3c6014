"""Fingerprints of channels: from the runner, which knows what it sends through pipes, to `train`, and in run records.

`input/config/channelfingerprints.json` is `{channel: {"digest", "files", "bytes", "read", "notes"}}`, where a run record has
the same under `fingerprints`. The digests' format is that of machine/fingerprint.py.
"""

from __future__ import annotations

from trainshed.base.files import read_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "channelfingerprints.json"
RECORD_KEY = "fingerprints"
LARGEST = 1 << 20  # bytes
MOST_NOTES = 10
LARGEST_COUNT = 1 << 62  # of files or bytes
_COUNTS = ("files", "bytes", "read")


def handed_over(config: str) -> dict[str, dict[str, Any]]:
    """Returns what the runner has handed over; {} where it has not, or in another form. config: the folder input/config."""
    return in_shape(read_object(f"{config}/{FILE}", LARGEST))


def in_shape(value: Any) -> dict[str, dict[str, Any]]:
    """Returns what of it has the form above: anybody may have written it."""
    if not isinstance(value, dict):
        return {}
    return {name: good for name, one in value.items() if isinstance(name, str) and (good := _one(one))}


def described(one: dict[str, Any]) -> str:
    """A fingerprint for a person: `sampled:0123... (3 files, 12 MB)`, and its notes."""
    from trainshed.base.units import size

    files = "1 file" if one["files"] == 1 else f"{one['files']:,} files"
    notes = "".join(f"; {note}" for note in one.get("notes", ()))
    return f"{one['digest'] or 'unknown'} ({files}, {size(one['bytes'])}{notes})"


def _one(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("digest"), str):
        return {}
    good: dict[str, Any] = {"digest": value["digest"][:100]}
    for name in _COUNTS:
        count = value.get(name)
        good[name] = count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < LARGEST_COUNT else 0
    notes = value.get("notes")
    if isinstance(notes, list) and (texts := [str(one) for one in notes[:MOST_NOTES] if isinstance(one, str)]):
        good["notes"] = texts
    return good
