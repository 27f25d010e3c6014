"""Copies that come home from a node: a folder of a host's tree, again and again during the job, whole at its end.

A file comes in parts, beside its place, and takes it only if it is still the one that was listed: never half of two.
What a checkpoint's manifest (checkpoint/manifest.py) names and has not come yet makes it incomplete, and a resume takes an
earlier one. The node's lists are what the user's program made, so no path in them is trusted.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping

from trainshed.base.errors import TrainshedError
from trainshed.base.files import remove

Listed = tuple[
    str, int, int, int, str
]  # (kind, size, time in ns, mode, where a link leads), as node.HostActor.listing tells them

BATCH = 4 << 20  # bytes that are asked for at once


class FolderMirror:
    """One folder of one host.

    Args:
        listing: lists the folder on the node. read: reads parts of its files, by their path below the folder.
        home: the folder here.
        most: bytes of the largest file that comes while the job runs; None for all.
        owned: which host a path belongs to, shared by the mirrors of one `home`: hosts may each make a file of one name. It
            stays the first one's; the others' are `clashes`.
        host: this one's name.
    """

    def __init__(
        self,
        listing: Callable[[], Mapping[str, Listed]],
        read: Callable[[list[tuple[str, int, int]]], list[bytes | None]],
        home: str,
        owned: dict[str, str],
        host: str,
        most: int | None = None,
    ) -> None:
        self.listing, self.read, self.home, self.owned, self.host, self.most = listing, read, home, owned, host, most
        self.seen: dict[str, Listed] = {}  # at the last look
        self.here: dict[str, Listed] = {}  # as they came
        self.clashes: set[str] = set()
        self.left_out: list[str] = []

    def given(self, owner: bool) -> None:
        """Takes what the node has now as what it was given from here; `owner`: and as this host's."""
        self.seen = self.here = dict(self.listing())
        if owner:
            self.owned.update(dict.fromkeys(self.here, self.host))

    def look(self, *, last: bool = False) -> None:
        """Brings what is new; while the job runs, files that two looks have found the same, so that none comes that is being
        written.

        Raises:
            OSError: it cannot be written here.
        """
        now = {path: one for path, one in self.listing().items() if self._is_safe(path, one)}
        for path in [path for path in self.here if path not in now]:
            del self.here[path]
            if self.owned.get(path) == self.host:
                del self.owned[path]
                self._remove(path)
        wanted = []
        for path, one in now.items():
            if self.here.get(path) == one or not (last or self.seen.get(path) == one):
                continue
            if self.owned.setdefault(path, self.host) != self.host:
                self.clashes.add(path)
            elif last or self.most is None or one[1] <= self.most:
                wanted.append(path)
        self.seen = now
        self._bring(wanted, now)

    def bring_clashes(self, folder: str) -> None:
        """Brings the files whose place another host's have taken, to a folder of their own, once the job is over."""
        aside = FolderMirror(self.listing, self.read, folder, {}, self.host)
        aside._bring(sorted(self.clashes), {path: one for path, one in self.seen.items() if path in self.clashes})

    def _bring(self, wanted: list[str], now: Mapping[str, Listed]) -> None:
        batch: list[tuple[str, int, int]] = []
        size = 0
        for path in wanted:
            kind, length, _, _, link = now[path]
            place = f"{self.home}/{path}"
            if kind == "file" and length <= BATCH:
                batch.append((path, 0, length + 1))
                size += length
                if size >= BATCH:
                    self._small(batch, now)
                    batch, size = [], 0
            elif kind == "file":
                self._large(path, now[path])
            elif kind == "folder":
                os.makedirs(place, exist_ok=True)
                self.here[path] = now[path]
            else:
                _make_room(place)
                os.symlink(link, place)
                self.here[path] = now[path]
        self._small(batch, now)

    def _small(self, batch: list[tuple[str, int, int]], now: Mapping[str, Listed]) -> None:
        if not batch:
            return
        for (path, _, _), data in zip(batch, self.read(batch), strict=True):
            if data is not None and len(data) == now[path][1]:
                with _Arriving(f"{self.home}/{path}", now[path]) as file:
                    file.write(data)
                self.here[path] = now[path]

    def _large(self, path: str, one: Listed) -> None:
        with _Arriving(f"{self.home}/{path}", one) as file:
            left = one[1]
            while left:
                data = self.read([(path, one[1] - left, min(BATCH, left))])[0]
                if not data:
                    file.give_up()
                    return
                file.write(data)
                left -= len(data)
            if self.listing().get(path) != one:
                file.give_up()
                return
        self.here[path] = one

    def _is_safe(self, path: str, one: Listed) -> bool:
        parts = path.split("/")
        safe = not os.path.isabs(path) and "\0" not in path and not {"", ".", ".."} & set(parts)
        link = one[4]
        if safe and link:
            target = os.path.normpath(os.path.join(os.path.dirname(path), link))
            safe = not os.path.isabs(link) and target != ".." and not target.startswith("../")
        # A link above it may lead anywhere.
        for number in range(1, len(parts)):
            safe = safe and not os.path.islink(f"{self.home}/{'/'.join(parts[:number])}")
        if not safe and path not in self.left_out:
            self.left_out.append(path)
        return safe

    def _remove(self, path: str) -> None:
        place = f"{self.home}/{path}"
        folder = path if os.path.isdir(place) and not os.path.islink(place) else os.path.dirname(path)
        if folder != path:
            remove(place)
        while folder:
            try:
                os.rmdir(f"{self.home}/{folder}")
            except OSError:  # it holds more
                return
            folder = os.path.dirname(folder)


class _Arriving:
    """A file that takes its place whole, with the time and the mode that it has on the node."""

    def __init__(self, place: str, one: Listed) -> None:
        self.place, self.one = place, one
        self.wanted = True

    def __enter__(self) -> _Arriving:
        _make_room(self.place, keep_file=True)
        fd, self.path = tempfile.mkstemp(prefix=".coming-", suffix=".tmp", dir=os.path.dirname(self.place))
        self.file = os.fdopen(fd, "wb")
        return self

    def write(self, data: bytes) -> None:
        """The next bytes of it."""
        self.file.write(data)

    def give_up(self) -> None:
        """It is not to take its place."""
        self.wanted = False

    def __exit__(self, problem: object, *_: object) -> None:
        try:
            if problem is None and self.wanted:
                self.file.flush()
                os.fsync(self.file.fileno())
                os.fchmod(self.file.fileno(), stat.S_IMODE(self.one[3]) & 0o777)
                os.utime(self.file.fileno(), ns=(self.one[2], self.one[2]))
                os.replace(self.path, self.place)
        finally:
            self.file.close()
            remove(self.path)


def _make_room(place: str, *, keep_file: bool = False) -> None:
    """Folders above a path, and nothing at it that would be in the way."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.isdir(place) and not os.path.islink(place):
        try:
            os.rmdir(place)
        except OSError as error:
            raise TrainshedError(f"{place} is a folder here and a file on the node: {error.strerror}") from None
    elif not keep_file:
        remove(place)


def words_of(left_out: list[str], what: str) -> list[str]:
    """A warning about what was left out, or none."""
    names = ", ".join(sorted(left_out)[:3])
    return [f"left out of what came from {what}: {names}: it would lie elsewhere"] if left_out else []
