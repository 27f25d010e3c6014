"""Samples of an augmented manifest as they come through a pipe: a RecordIO record for each attribute, in a known order."""

from __future__ import annotations

import json

from .errors import DataError, damaged
from .format import StreamFormat
from .recordio import RecordIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import IO, Any


class Augmented(StreamFormat):
    """Samples are dictionaries: bytes for attributes that end with `-ref`, else what their JSON says, or their text.

    Args:
        attributes: their names, in the order of the channel's `AttributeNames`.
    """

    name = "augmented"

    def __init__(self, attributes: Sequence[str]) -> None:
        if not attributes or len(set(attributes)) < len(attributes):
            raise DataError("an augmented manifest has one or more attributes, each of them once")
        self.attributes = tuple(attributes)

    def split(self, stream: IO[bytes], path: str, record: int = 0, offset: int = 0) -> Iterator[tuple[int, Any]]:
        """A record is a tuple: the bytes of each attribute."""
        count = len(self.attributes)
        found: list[bytes] = []
        began = offset
        for at, payload in RecordIO().split(stream, path, record * count, offset):
            began = began if found else at
            found.append(payload)
            if len(found) == count:
                yield began, tuple(found)
                found, record = [], record + 1
        if found:
            raise damaged(path, record, began, f"is cut short: it has {len(found)} of {count} attributes")

    def sample(self, record: Any) -> dict[str, Any]:
        """The attributes by name."""
        return {
            name: data if name.endswith("-ref") else _value(data) for name, data in zip(self.attributes, record, strict=True)
        }


def _value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")
