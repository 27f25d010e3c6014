"""A copy of the checkpoints on any storage that fsspec reaches: `s3://bucket/run`, `gs://...`, `memory://...`.

Object stores have no rename that publishes: there the manifest is written last, and a checkpoint without it does not exist.
What is fetched is verified like everything else before it gets its name here. Needs the extra `trainshed[fsspec]` and the
storage's own package (s3fs, gcsfs, adlfs).
"""

from __future__ import annotations

import os
import secrets

from . import folder as folders
from .errors import CheckpointError
from .manifest import Damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MANIFEST = ".manifest"


class Remote:
    """One prefix on a storage; the same layout as a folder has.

    Raises:
        CheckpointError: fsspec, or its package for this kind of storage, is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise CheckpointError(f"{url}: {error}; install trainshed[fsspec] and the storage's own package") from error
        self.url = url.rstrip("/")
        self._root = self._root.rstrip("/")

    def push(self, path: str) -> None:
        """Uploads a published checkpoint (this host's part of it), the manifests last.

        Raises:
            OSError: the storage cannot be written.
        """
        target = f"{self._root}/{os.path.basename(path)}"
        with _as_os_errors(f"{self.url}/{os.path.basename(path)}"):
            self._fs.makedirs(target, exist_ok=True)
            names = sorted(os.listdir(path), key=lambda name: (name.endswith(MANIFEST), name))
            for name in set(self._names(target)) & {name for name in names if name.endswith(MANIFEST)}:
                self._fs.rm_file(f"{target}/{name}")  # one that was passed over gives way; it must not vouch for a mixture
            for name in names:
                self._fs.put_file(f"{path}/{name}", f"{target}/{name}")

    def prune(self, upto: int, *, keep_last: int, keep_every: int = 0) -> None:
        """Deletes old checkpoints, as `folder.prune` does here: this disk may never have had them.

        Args:
            upto: the newest that counts.
        """
        with _as_os_errors(self.url):
            names = [name for name in self._names(self._root) if folders.is_name(name)]
        steps = sorted((step for step in map(folders.step_of, names) if step <= upto), reverse=True)
        self.drop(step for step in steps[keep_last:] if not (keep_every and step % keep_every == 0))

    def drop(self, steps: Iterable[int]) -> None:
        """Deletes checkpoints, the manifests first, so that nobody takes the rest for a whole one."""
        for step in steps:
            path = f"{self._root}/{folders.name_of(step)}"
            with _as_os_errors(f"{self.url}/{folders.name_of(step)}"):
                names = self._names(path)
                for name in sorted(names, key=lambda name: not name.endswith(MANIFEST)):
                    try:
                        self._fs.rm_file(f"{path}/{name}")
                    except FileNotFoundError:  # another host was faster
                        pass
                if names and self._fs.isdir(path):  # object stores have none
                    self._fs.rmdir(path)

    def fetch(self, folder: str, say: Callable[[str], None]) -> None:
        """Brings the newest checkpoint that verifies into the folder, unless one there is as new.

        Raises:
            OSError: the storage cannot be read.
        """
        here, _ = folders.scan(folder)
        newest = here[0].step if here else -1
        with _as_os_errors(self.url):
            names = sorted((name for name in self._names(self._root) if folders.is_name(name)), reverse=True)
        for name in names:
            if name <= folders.name_of(newest):
                return
            with _as_os_errors(f"{self.url}/{name}"):
                if not any(one.endswith(MANIFEST) for one in self._names(f"{self._root}/{name}")):
                    say(f"{self.url}/{name} passed over: it was not uploaded to its end")
                    continue
            # Under its own name, for that is part of what is verified, in a folder that nobody takes for a checkpoint.
            aside = f"{folder}/{folders.ASIDE}fetch-{secrets.token_hex(4)}"
            try:
                with _as_os_errors(f"{self.url}/{name}"):
                    os.makedirs(f"{aside}/{name}")
                    for one in self._names(f"{self._root}/{name}"):
                        self._fs.get_file(f"{self._root}/{name}/{one}", f"{aside}/{name}/{one}")
                folders.verify(folders.open_checkpoint(f"{aside}/{name}"))
                folders.adopt(folder, f"{aside}/{name}")
                say(f"fetched {self.url}/{name}")
                return
            except Damaged as error:
                say(f"{self.url}/{name} passed over: {error}")
            finally:
                folders.remove_tree(aside)

    def _names(self, path: str) -> list[str]:
        """What lies below a prefix, asked of the storage each time; [] if nothing does."""
        self._fs.invalidate_cache()
        try:
            return [entry.rstrip("/").rpartition("/")[2] for entry in self._fs.ls(path, detail=False)]
        except FileNotFoundError:
            return []


class _as_os_errors:
    """Within the block, whatever a storage's package raises becomes an OSError that names the place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, Exception):
            number = getattr(error, "errno", None) or 5  # EIO
            raise OSError(number, " ".join(str(error).split()) or type(error).__name__, self._place) from error
