"""A copy of a Checkpointer's checkpoints on another storage: `s3://bucket/run`, `gs://...`, `memory://...`.

Object stores have no rename that publishes: there the manifest is written last, and a checkpoint without it does not exist.
What is fetched is verified like everything else before it gets its name here.
"""

from __future__ import annotations

import os
import secrets

from . import folder as folders
from . import manifest as manifests
from .manifest import SUFFIX, Damaged
from .storage import open_storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Remote:
    """One prefix on a storage; the same layout as a folder has.

    Raises:
        CheckpointError: what is needed for this kind of storage is not installed.
    """

    def __init__(self, url: str) -> None:
        self._storage = open_storage(url)
        self.url = self._storage.url

    def push(self, path: str) -> None:
        """Uploads a published checkpoint (this host's part of it), the manifests last.

        Raises:
            OSError: the storage cannot be written.
        """
        target = os.path.basename(path)
        names = sorted(os.listdir(path), key=lambda name: (name.endswith(SUFFIX), name))
        for name in set(self._storage.names(target)) & {name for name in names if name.endswith(SUFFIX)}:
            self._storage.remove(f"{target}/{name}")  # one that was passed over gives way; it must not vouch for a mixture
        for name in names:
            self._storage.put(f"{path}/{name}", f"{target}/{name}")

    def prune(self, upto: int, *, keep_last: int, keep_every: int = 0) -> None:
        """Deletes old checkpoints, as `folder.prune` does here: this disk may never have had them.

        Args:
            upto: the newest that counts.
        """
        steps = sorted((step for step in map(folders.step_of, self._checkpoints()) if step <= upto), reverse=True)
        self.drop(step for step in steps[keep_last:] if not (keep_every and step % keep_every == 0))

    def drop(self, steps: Iterable[int]) -> None:
        """Deletes the checkpoints of these steps. Raises OSError."""
        for step in steps:
            self.drop_named(folders.name_of(step))

    def drop_named(self, name: str) -> None:
        """Deletes one checkpoint, the manifests first, so that the rest is never taken for a whole one. Raises OSError."""
        manifests.withdraw(self._storage, name)
        self._storage.remove_folder(name)

    def fetch(self, folder: str, say: Callable[[str], None]) -> None:
        """Brings the newest checkpoint that verifies into the folder, unless one there is as new.

        Raises:
            OSError: the storage cannot be read.
        """
        here, _ = folders.scan(folder)
        newest = here[0].step if here else -1
        for name in sorted(self._checkpoints(), reverse=True):
            if name <= folders.name_of(newest):
                return
            files = self._storage.names(name)
            if not any(one.endswith(SUFFIX) for one in files):
                say(f"{self.url}/{name} passed over: it was not uploaded to its end")
                continue
            try:
                self._bring(folder, name, files)
                say(f"fetched {self.url}/{name}")
                return
            except Damaged as error:
                say(f"{self.url}/{name} passed over: {error}")

    def fetch_named(self, folder: str, name: str) -> None:
        """Brings one checkpoint, which may have any name, into the folder; replaces what has that name there.

        Raises:
            Damaged: there is no whole copy.
            OSError: the storage cannot be read, or the folder cannot be written.
        """
        files = self._storage.names(name)
        if not any(one.endswith(SUFFIX) for one in files):
            raise Damaged(f"there is no whole copy at {self.url}/{name}")
        self._bring(folder, name, files, any_name=True)

    def _bring(self, folder: str, name: str, files: list[str], any_name: bool = False) -> None:
        """Copies a checkpoint's files into the folder; it gets its name there once every byte is verified."""
        # The name is part of what is verified, so it lies under its own name in a hidden folder until then.
        aside = f"{folder}/{folders.ASIDE}fetch-{secrets.token_hex(4)}"
        try:
            os.makedirs(f"{aside}/{name}")
            for file in files:
                self._storage.get(f"{name}/{file}", f"{aside}/{name}/{file}")
            folders.verify(folders.open_checkpoint(f"{aside}/{name}", any_name=any_name))
            folders.adopt(folder, f"{aside}/{name}")
        finally:
            folders.remove_tree(aside)

    def _checkpoints(self) -> list[str]:
        return [name for name in self._storage.names() if folders.is_name(name)]
