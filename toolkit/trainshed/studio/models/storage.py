"""What the model store needs from the place where it lies, and which place an address means."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Protocol

from trainshed.base.errors import TrainshedError
from trainshed.base.s3 import SCHEME as S3
from trainshed.contract.wire.variables import MODEL_STORE

from .in_s3 import InS3
from .on_disk import OnDisk


class Storage(Protocol):
    """Objects by keys, which are paths below the store. Every method raises TrainshedError where it cannot do its work."""

    shown: str

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder, files and folders, sorted; [] where there is no such folder."""

    def keys(self, folder: str) -> dict[str, int]:
        """Bytes of everything below a folder, by the path below it."""

    def read(self, key: str, limit: int) -> bytes | None:
        """A small object, None where there is none."""

    def create(self, key: str, data: bytes) -> bool:
        """Makes a small object at once; False where there is one already. Of two writers one gets True."""

    def replace(self, key: str, data: bytes) -> None:
        """Makes a small object, or another one of it, at once."""

    def put(self, path: str, key: str) -> tuple[int, str]:
        """Copies a file there; its bytes and their SHA-256. Raises OSError where the file cannot be read."""

    def blocks(self, key: str) -> Iterator[bytes]:
        """The bytes of an object, in blocks. Raises FileNotFoundError where there is none."""

    def address(self, key: str) -> str:
        """Path or URI of an object."""

    def remove(self, key: str) -> None:
        """Removes an object, if it is there."""

    def remove_below(self, folder: str) -> None:
        """Removes a folder and everything in it."""


def storage_at(place: str, environ: Mapping[str, str]) -> Storage:
    """The storage of the store at an address.

    Args:
        place: a folder or `s3://bucket/prefix`; "" for what TRAINSHED_MODEL_STORE says, else this user's folder.

    Raises:
        TrainshedError: it cannot be used.
    """
    place = place or environ.get(MODEL_STORE, "") or default_folder(environ)
    if place.startswith(S3):
        return InS3(place, environ)
    if "://" in place.removeprefix("file://"):
        raise TrainshedError(f"{place} cannot hold a model store", hint="give a folder, or s3://bucket/prefix")
    return OnDisk(place.removeprefix("file://"))


def default_folder(environ: Mapping[str, str]) -> str:
    """`$XDG_DATA_HOME/trainshed/models`, else below `~/.local/share`."""
    data = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(data):
        data = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/share")
    return f"{data}/trainshed/models"
