"""`model://` as the source of a channel: the files of a version, each compared with the SHA-256 that it names for them.

The runner finds this module by the scheme (`runner.files.fetching.sources`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainshed.base.errors import TrainshedError
from trainshed.base.s3 import SCHEME as S3
from trainshed.contract.model_reference import SCHEME, meant_by
from trainshed.runner.files.fetching.etag import SHA256
from trainshed.runner.files.fetching.items import Item

from .storage import storage_at
from .store import ModelStore


def pinned(address: str, environ: Mapping[str, str]) -> str:
    """The address of the version that is meant now, where it names a stage or the newest version; else itself.

    Raises:
        TrainshedError: there is no such version, or the store cannot be read.
    """
    meant = meant_by(address)
    return address if meant.number else f"{SCHEME}{ModelStore(storage_at('', environ)).find(meant)}"


def source_of(address: str, environ: Mapping[str, str]) -> ModelVersion:
    """The source. Raises TrainshedError as `ModelVersion` does."""
    return ModelVersion(address, environ)


class ModelVersion:
    """The source.

    Args:
        address: `model://NAME`, `model://NAME:3` or `model://NAME@champion`, in the store of `environ`.

    Raises:
        TrainshedError: there is no such version, or the store cannot be read.
    """

    def __init__(self, address: str, environ: Mapping[str, str]) -> None:
        self.store = ModelStore(storage_at("", environ))
        self.version = self.store.find(meant_by(address))
        self.objects = None
        if self.store.address(self.version).startswith(S3):
            from trainshed.runner.files.fetching.from_s3 import Objects

            self.objects = Objects(environ)

    def items(self) -> list[Item]:
        """The files of the version, sorted by name."""
        place = self.store.address(self.version)
        files = sorted(self.version.files, key=lambda file: file.name)
        return [Item(one.name, f"{place}/{one.name}", one.size, f"{SHA256}{one.sha256}") for one in files]

    def known(self, item: Item) -> Item:
        """A version does not change."""
        return item

    def read(self, item: Item, start: int, end: int) -> bytes:
        """Bytes of a file. Raises Passing, TrainshedError."""
        if self.objects is not None:
            return self.objects.read(Item(item.name, item.url, item.size), start, end)
        try:
            fd = os.open(item.url, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                data = os.pread(fd, end - start, start)
            finally:
                os.close(fd)
        except OSError as error:
            raise TrainshedError(f"{self.version}: {item.url} cannot be read: {error.strerror}") from error
        if len(data) != end - start:
            raise TrainshedError(f"{self.version} is damaged: {item.url} is shorter than the file that was added")
        return data

    def at_once(self, item: Item) -> None:
        """Both places give ranges."""

    def parts(self, item: Item) -> list[int]:
        """Its hash is that of all bytes."""
        return [item.size]
