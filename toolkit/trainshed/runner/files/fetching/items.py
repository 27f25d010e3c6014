"""The items that a channel elsewhere is made of, and the interface of storages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Item:
    """One file of a channel that is elsewhere.

    name: below the channel's folder. url: where it is.
    size: bytes, -1 where it was not said. etag: what tells one content from another, "" where it was not said.
    """

    name: str
    url: str
    size: int = -1
    etag: str = ""


class Passing(Exception):
    """An error that may pass: the storage is overloaded, the connection broke, nothing came."""


class ItemChanged(Exception):
    """The item is not what it was when it was listed."""


class Source(Protocol):
    """A storage. Its methods are called by several threads at once, and are done in bounded time."""

    def known(self, item: Item) -> Item:
        """The item as it is now, with its size. Raises Passing, TrainshedError."""

    def read(self, item: Item, start: int, end: int) -> bytes:
        """Bytes `start` to `end` (excluded) of it. Raises Passing, Changed, TrainshedError."""

    def at_once(self, item: Item) -> Iterator[bytes] | None:
        """All of it, where it cannot be read in ranges; None where it can. Raises Passing, TrainshedError."""

    def parts(self, item: Item) -> list[int]:
        """Sizes of the parts that its ETag is made of: one for an MD5; [] where its ETag is not made of MD5s.

        Raises:
            Passing, TrainshedError: the storage does not say.
        """
