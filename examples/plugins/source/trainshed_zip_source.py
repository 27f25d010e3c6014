"""A source of channels: the files in a zip archive of this machine, as `zip:///data/digits.zip`."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping

from trainshed.base.errors import TrainshedError
from trainshed.runner.files.fetching.items import Item
from trainshed.runner.job.job import ChannelSpec


class Archive:
    """The storage. Several threads read at once, so that each opens the archive for itself."""

    def __init__(self, path: str) -> None:
        self.path = path

    def known(self, item: Item) -> Item:
        """The archive said all of it when it was listed."""
        return item

    def read(self, item: Item, start: int, end: int) -> bytes:
        """Bytes `start` to `end` of a file."""
        with zipfile.ZipFile(self.path) as archive, archive.open(item.name) as file:
            file.seek(start)
            return file.read(end - start)

    def at_once(self, item: Item) -> None:
        """None: a file can be read in ranges."""

    def parts(self, item: Item) -> list[int]:
        """None: its CRC is not an MD5."""
        return []


def members(channel: ChannelSpec, environ: Mapping[str, str]) -> tuple[Archive, list[Item]]:
    """The storage and the files of a channel, sorted by name. Raises TrainshedError."""
    path = channel.path.removeprefix("zip://")
    try:
        with zipfile.ZipFile(path) as archive:
            files = [one for one in archive.infolist() if not one.is_dir()]
    except (OSError, zipfile.BadZipFile) as error:
        raise TrainshedError(f"{channel.path}: {error}") from error
    if not files:
        raise TrainshedError(f"{channel.path}: holds no files")
    items = [Item(one.filename, f"{channel.path}/{one.filename}", one.file_size, f"crc {one.CRC:08x}") for one in files]
    return Archive(path), sorted(items, key=lambda item: item.name)
