"""Checkpoints on another storage: what the copies of a Checkpointer (`remote`) and of a library (`copies`) share.

Object stores have no rename that publishes. There a manifest is written last and deleted first: what has none is not a
checkpoint. What is fetched lies in a hidden folder here until every byte of it is verified.
"""

from __future__ import annotations

import contextlib
import os
import secrets

from . import folder as folders
from .manifest import SUFFIX, Damaged
from .storage import open_storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .folder import Naming


class Mirror:
    """Checkpoints below one URL; the subclasses know what a checkpoint consists of.

    url: without a login, for messages.

    Raises:
        CheckpointError: what is needed for this kind of storage is not installed.
    """

    def __init__(self, url: str, naming: Naming) -> None:
        self._storage = open_storage(url)
        self._naming = naming
        self.url = self._storage.url

    def steps(self) -> list[int]:
        """Steps that have a copy, whole or not, in no order. Raises OSError where the storage cannot be read."""
        steps = map(self._naming.step_of, self._storage.names())
        return [step for step in steps if step is not None]

    def drop(self, name: str) -> None:
        """Deletes one checkpoint, the manifests first: what is left is never taken for a whole one. Raises OSError."""
        self._withdraw(name, self._manifests(name))
        self._storage.remove_folder(name)

    def _manifests(self, folder: str) -> list[str]:
        """Names of the manifests in a folder of the storage."""
        return [name for name in self._storage.names(folder) if name.endswith(SUFFIX)]

    def _withdraw(self, folder: str, manifests: Iterable[str]) -> None:
        """Deletes manifests, so that they cannot validate a mix of two saves."""
        for name in manifests:
            self._storage.remove(f"{folder}/{name}")

    def _upload(self, path: str, names: Iterable[str], folder: str) -> None:
        """Copies files of the folder `path` to a folder of the storage, manifests last."""
        for name in sorted(names, key=lambda name: (name.endswith(SUFFIX), name)):
            self._storage.put(f"{path}/{name}", f"{folder}/{name}")

    def _download(self, name: str, target: str) -> None:
        """Copies a file here. Raises Damaged where it is missing, OSError where it cannot be read or written."""
        folder, _, last = name.rpartition("/")
        try:
            self._storage.get(name, target)
        except OSError:
            if last not in self._storage.names(folder):
                raise Damaged(f"{last} is missing") from None
            raise

    @contextlib.contextmanager
    def _aside(self, folder: str, name: str) -> Iterator[str]:
        """An empty folder called `name` in a hidden one of `folder`; what is still there at the end is deleted.

        The checkpoint's name is part of what is verified, so it has it there already.
        """
        aside = f"{folder}/{folders.ASIDE}fetch-{secrets.token_hex(4)}"
        try:
            os.makedirs(f"{aside}/{name}")
            yield f"{aside}/{name}"
        finally:
            folders.remove_tree(aside)
