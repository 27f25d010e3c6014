"""One item becomes one file, whole: gone on with after a break, compared with what the storage says of it."""

from __future__ import annotations

import os
import threading

from trainshed.base.errors import TrainshedError

from . import etag
from .items import Item, ItemChanged, Passing, Source
from .progress import Progress
from .ranges import Crew, FetchCancelled, blocks, patiently

TRIES = 3  # for an item that changes, or arrives damaged


class Fetcher:
    """Fetches items of one source, by many threads.

    Args:
        crew: makes the requests. over: set where fetching is given up.
    """

    def __init__(self, source: Source, crew: Crew, over: threading.Event, progress: Progress) -> None:
        self.source, self.crew, self.over, self.progress = source, crew, over, progress

    def known(self, item: Item) -> Item:
        """The item with its size. Raises TrainshedError, Over."""
        return item if item.size >= 0 else self.again(item)

    def again(self, item: Item) -> Item:
        """The item as it is now. Raises TrainshedError, Over."""
        return patiently(lambda: self.source.known(item), item.url, self.over, self.progress)

    def fetch(self, item: Item, path: str) -> bool:
        """Writes the item to a file, after what is in it already; whether its ETag is the MD5 of what came.

        Raises:
            Changed: the item is another one by now. TrainshedError: it cannot be fetched. OSError: of the file. Over.
        """
        for attempt in range(TRIES):
            try:
                self._append(item, path)
            except ItemChanged:
                self._drop(path)
                raise
            if (right := self._is_right(item, path)) is not None:
                return right
            self._drop(path)
            self.progress.note(f"{item.url} arrived damaged")
            if attempt == TRIES - 1:
                raise TrainshedError(f"{item.url} arrived {TRIES} times with another checksum than its ETag {item.etag}")
        raise AssertionError

    def _append(self, item: Item, path: str) -> None:
        if patiently(lambda: self._at_once(item, path), item.url, self.over, self.progress):
            return
        with open(path, "ab") as file:
            start = file.tell()
            if start > item.size:
                file.truncate(0)
                start = 0
            self.progress.came(start, here=True)
            for block in blocks(self.source, item, start, self.crew, self.over, self.progress):
                file.write(block)
                self.progress.came(len(block))

    def _drop(self, path: str) -> None:
        self.progress.came(-os.path.getsize(path))
        os.unlink(path)

    def _at_once(self, item: Item, path: str) -> bool:
        stream = self.source.at_once(item)
        if stream is None:
            return False
        with open(path, "wb") as file:
            try:
                for block in stream:
                    if self.over.is_set():
                        raise FetchCancelled
                    file.write(block)
                    self.progress.came(len(block))
            except Passing:
                self.progress.came(-file.tell())
                raise
        return True

    def _is_right(self, item: Item, path: str) -> bool | None:
        """Whether its checksum is; False where there is none to compare with, None where something is wrong."""
        if item.size >= 0 and os.path.getsize(path) != item.size:
            return None
        if item.etag.startswith(etag.SHA256):
            return False if etag.is_sha256_of(path, item.etag) else None
        if not etag.is_md5(item.etag) and not etag.parts_in(item.etag):
            return False
        parts = patiently(lambda: self.source.parts(item), item.url, self.over, self.progress)
        if not parts:
            return False
        return etag.is_md5(item.etag) if etag.etag_of(path, parts, item.etag) == item.etag else None
