"""A channel's items, brought to their places: several at once, through the cache where there is one."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from trainshed.base.errors import TrainshedError
from trainshed.base.units import size as shown_size
from trainshed.machine import cloning

from . import etag
from . import file_cache as kept
from .file_cache import Cache
from .items import Item, ItemChanged, Passing, Source
from .progress import TransferProgress
from .ranges import AT_ONCE, Crew, FetchCancelled, blocks, patiently

WORKERS = 8  # items that are fetched at once
END = 2.0  # seconds for those that bring to see that it is over
LOOK = 0.1  # seconds between two looks at how far it is


@dataclass(frozen=True)
class TransferMethod:
    """How items come to their places.

    cache: None for none. spare: takes what the cache does not, for a while: a warm pool's; None for none.
    shared: whether a place may be another name of the cache's file, since nobody can write to it there.
    aside: a folder for parts of items that the cache does not keep, on the disk of the places.
    say, status: for the person: what matters, and how far it is.
    """

    cache: Cache | None
    shared: bool
    aside: str
    say: Callable[[str], None]
    status: Callable[[str], None]
    spare: Cache | None = None

    def without_cache(self) -> TransferMethod:
        """The same way, with the spare cache if there is one."""
        return replace(self, cache=self.spare, spare=None)


def bring_all(what: str, source: Source, wanted: list[tuple[Item, str]], way: TransferMethod) -> None:
    """Brings items to paths, whose folders are there.

    Args:
        what: is brought, for messages.

    Raises:
        TrainshedError: an item does not come. OSError: a file cannot be written.
    """
    sizes = [item.size for item, _ in wanted]
    total = -1 if any(size < 0 for size in sizes) else sum(sizes)
    if way.cache is not None and (obstacle := way.cache.obstacle()):
        way.say(f"warning: {what} is not kept for other runs: {obstacle}")
        way = way.without_cache()
    if way.cache is not None and total > way.cache.limit:
        limit = shown_size(way.cache.limit)
        kept_how = "in the warm pool alone" if way.spare is not None else "not"
        way.say(f"{what}: {shown_size(total)} are {kept_how} kept for other runs: the cache may hold {limit}")
        way = way.without_cache()
    way = _affordable(what, wanted, total, way)
    progress = TransferProgress(what, len(wanted), total)
    over = threading.Event()
    crew = Crew(AT_ONCE, over)
    team = _Team(Fetcher(source, crew, over, progress), way, wanted)
    try:
        while not team.wait(LOOK):
            way.status(progress.line())
        team.check()
    finally:
        over.set()
        crew.close()
        team.wait(END)  # else one could still write to what is removed now
        shutil.rmtree(way.aside, ignore_errors=True)
    if way.cache is not None:
        way.cache.prune()


class _Team:
    """Threads that bring one item after the other."""

    def __init__(self, fetcher: Fetcher, way: TransferMethod, wanted: list[tuple[Item, str]]) -> None:
        self.fetcher, self.way = fetcher, way
        self.error: BaseException | None = None
        self._left: queue.SimpleQueue[tuple[Item, str]] = queue.SimpleQueue()
        for one in wanted:
            self._left.put(one)
        count = min(WORKERS, len(wanted))
        self._threads = [threading.Thread(target=self._run, name=f"bring-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> bool:
        """Waits for all; whether they are done, or one has met an error."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return self.error is not None or not any(thread.is_alive() for thread in self._threads)

    def check(self) -> None:
        """Raises what a thread has met."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        over = self.fetcher.over
        while not over.is_set():
            try:
                item, target = self._left.get_nowait()
            except queue.Empty:
                return
            try:
                _bring(self.fetcher, item, target, self.way)
            except (FetchCancelled, InterruptedError):
                return
            except BaseException as error:
                self.error = self.error or error
                over.set()
                return
            self.fetcher.progress.finish()


def _bring(fetcher: Fetcher, item: Item, target: str, way: TransferMethod) -> None:
    item = fetcher.known(item)
    for _ in range(TRIES):
        try:
            if way.cache is not None and way.cache.keeps(item):
                _through_cache(fetcher, item, target, way.cache, way.shared)
            else:
                _directly(fetcher, item, target, way.aside)
            return
        except ItemChanged:
            fetcher.progress.note(f"{item.url} changed while it was fetched")
            item = fetcher.again(item)
    raise TrainshedError(f"{item.url} changed {TRIES} times while it was fetched", hint="start the job when it is complete")


def _through_cache(fetcher: Fetcher, item: Item, target: str, cache: Cache, shared: bool) -> None:
    with cache.entry(item, fetcher.over) as path:
        if kept.is_as_it_was(path, item):
            fetcher.progress.came(item.size, here=True)
        else:
            kept.begin(path, item)
            is_md5 = fetcher.fetch(item, f"{path}/{kept.PART}")
            kept.finish(path, item, is_md5=is_md5)
        if fetcher.over.is_set():
            raise FetchCancelled
        _place(f"{path}/{kept.WHOLE}", target, shared)
        kept.touch(path)


def _directly(fetcher: Fetcher, item: Item, target: str, aside: str) -> None:
    os.makedirs(aside, exist_ok=True)
    part = f"{aside}/{threading.get_ident()}"
    try:
        fetcher.fetch(item, part)
        os.rename(part, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _place(whole: str, target: str, shared: bool) -> None:
    """A script that writes to its file must not change the cache's."""
    if cloning.clone(whole, target):
        return
    if shared:
        try:
            os.link(whole, target)
            return
        except OSError:  # another disk, or one without links
            pass
    cloning.copy(whole, target)


def _affordable(what: str, wanted: list[tuple[Item, str]], total: int, way: TransferMethod) -> TransferMethod:
    """The way, without the cache where its disk has no room for what is to come (twice, where files are copied).

    Raises:
        TrainshedError: the disk has no room for it even so.
    """
    here = os.path.dirname(way.aside)
    if way.cache is not None:
        coming = sum(max(0, item.size) for item, _ in wanted if not way.cache.keeps(item) or not way.cache.has(item))
        copied = 0 if way.shared or not _same_disk(way.cache, here) else max(0, total)
        if _room(way.cache.folder, coming + copied, way.cache):
            return way
        way.say(f"{what} is not kept for other runs: the disk has no room for that")
        way = replace(way, cache=None)
    other = kept.find_cache(os.environ)
    if not _room(here, total, other if other is not None and _same_disk(other, here) else None):
        raise TrainshedError(
            f"{what} needs {shown_size(total)}, and the disk of {here} has {shown_size(kept.free_bytes(here))} left",
            hint="make room there, or stream it with input_mode FastFile",
        )
    return way


def _room(folder: str, count: int, cache: Cache | None) -> bool:
    """Whether a disk has room for so many bytes, if need be where a cache on it gives some up."""
    if kept.free_bytes(folder) < count and cache is not None:
        cache.prune(room=count)
    return kept.free_bytes(folder) >= count


def _same_disk(cache: Cache, folder: str) -> bool:
    try:
        return os.stat(cache.folder).st_dev == os.stat(folder).st_dev
    except OSError:  # there is no cache yet
        return False


TRIES = 3  # for an item that changes, or arrives damaged


class Fetcher:
    """Fetches items of one source, by many threads.

    Args:
        crew: makes the requests. over: set where fetching is given up.
    """

    def __init__(self, source: Source, crew: Crew, over: threading.Event, progress: TransferProgress) -> None:
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
