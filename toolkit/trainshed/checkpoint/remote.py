"""A copy of a Checkpointer's checkpoints on another storage: `s3://bucket/run`, `gs://...`, `memory://...`."""

from __future__ import annotations

import os

from . import folder as folders
from .folder import STEPS
from .manifest import SUFFIX, Damaged
from .mirror import Mirror

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Remote(Mirror):
    """One prefix on a storage, with the same layout as a folder here.

    Raises:
        CheckpointError: what is needed for this kind of storage is not installed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, STEPS)

    def push(self, path: str) -> None:
        """Uploads a published checkpoint (this host's part of it), the manifests last.

        Raises:
            OSError: the storage cannot be written.
        """
        target = os.path.basename(path)
        names = os.listdir(path)
        self._withdraw(target, {name for name in names if name.endswith(SUFFIX)} & set(self._storage.names(target)))
        self._upload(path, names, target)

    def prune(self, upto: int, *, keep_last: int, keep_every: int = 0) -> None:
        """Deletes old checkpoints, as `folder.prune` does here: this disk may never have had them. Raises OSError.

        Args:
            upto: the newest that counts.
        """
        steps = sorted((step for step in self.steps() if step <= upto), reverse=True)
        for step in steps[keep_last:]:
            if not (keep_every and step % keep_every == 0):
                self.drop(STEPS.name_of(step))

    def fetch_newest(self, folder: str, say: Callable[[str], None]) -> None:
        """Brings the newest checkpoint that verifies into the folder, unless one there is as new.

        Raises:
            OSError: the storage cannot be read.
        """
        here, _ = folders.scan(folder)
        newest = here[0].step if here else -1
        for step in sorted(self.steps(), reverse=True):
            if step <= newest:
                return
            name = STEPS.name_of(step)
            try:
                self.fetch(folder, name)
                say(f"fetched {self.url}/{name}")
                return
            except Damaged as error:
                say(f"{self.url}/{name} passed over: {error}")

    def fetch(self, folder: str, name: str) -> None:
        """Brings one checkpoint, which may have any name, into the folder; replaces what has that name there.

        Raises:
            Damaged: there is no whole copy.
            OSError: the storage cannot be read, or the folder cannot be written.
        """
        files = self._storage.names(name)
        if not files:
            raise Damaged("there is no copy")
        if not any(file.endswith(SUFFIX) for file in files):
            raise Damaged("it was not uploaded to its end")
        with self._aside(folder, name) as path:
            for file in files:
                self._download(f"{name}/{file}", f"{path}/{file}")
            folders.verify(folders.open_checkpoint(path, any_name=STEPS.step_of(name) is None))
            folders.adopt(folder, path)
