"""A storage in memory, whose faults a test sets."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from trainshed.runner.files.fetching import ranges
from trainshed.runner.files.fetching.download import TransferMethod, bring_all
from trainshed.runner.files.fetching.file_cache import Cache
from trainshed.runner.files.fetching.items import Item, ItemChanged


class Storage:
    """Objects by name. before: called before each read, with (name, start, end)."""

    def __init__(self, **objects: bytes) -> None:
        self.objects = objects
        self.reads: Counter[str] = Counter()
        self.before: Callable[[str, int, int], None] = lambda *_: None
        self.damage: Callable[[str, bytes], bytes] = lambda _, data: data
        self._lock = threading.Lock()

    def item(self, name: str) -> Item:
        """As it would be listed."""
        body = self.objects[name]
        return Item(name, f"s3://bucket/{name}", len(body), hashlib.md5(body).hexdigest())

    def items(self) -> list[Item]:
        """All."""
        return [self.item(name) for name in sorted(self.objects)]

    def known(self, item: Item) -> Item:
        """As it is now."""
        return self.item(item.name)

    def read(self, item: Item, start: int, end: int) -> bytes:
        """Bytes of it."""
        self.before(item.name, start, end)
        with self._lock:
            self.reads[item.name] += 1
        if self.item(item.name).etag != item.etag:
            raise ItemChanged("it changed")
        return self.damage(item.name, self.objects[item.name][start:end])

    def at_once(self, item: Item) -> None:
        """In ranges."""

    def parts(self, item: Item) -> list[int]:
        """One."""
        return [item.size]


class Place:
    """Where a test brings items to: a new folder each time, through one cache."""

    def __init__(self, folder: Path, limit: int = 1 << 30) -> None:
        self.folder, self.cache, self.number = folder, Cache(str(folder / "cache"), limit), 0
        self.said: list[str] = []

    def bring(self, storage: Storage, items: list[Item] | None = None, *, shared: bool = True, kept: bool = True) -> Path:
        """The folder with the items."""
        self.number += 1
        target = self.folder / f"run-{self.number}"
        target.mkdir()
        wanted = [(item, str(target / item.name)) for item in (storage.items() if items is None else items)]
        way = TransferMethod(self.cache if kept else None, shared, f"{target}/.parts", self.said.append, self.said.append)
        bring_all("the channel train", storage, wanted, way)
        return target


def small_ranges(monkeypatch: object, size: int = 10) -> None:
    """Many ranges of few bytes, and no pauses."""
    monkeypatch.setattr(ranges, "RANGE", size)  # type: ignore[attr-defined]
    monkeypatch.setattr(ranges, "PAUSES", (0.0,) * 3)  # type: ignore[attr-defined]
