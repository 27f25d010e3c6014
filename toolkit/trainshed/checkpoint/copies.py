"""Copies, on another storage, of the folders `checkpoint-<step>` that a library has written and we have sealed.

    <url>/checkpoint-1200/            as it is here: the library's files, then <host>.part0.manifest
    <url>/checkpoint-1200/part1/      and what the second host has, where hosts have disks of their own

Each part has its own manifest. A host whose disk has nothing gets the files of all parts, its own first: libraries write
the model on the first host alone.
"""

from __future__ import annotations

import os

from . import folder as folders
from . import foreign_manifest as sealed
from . import manifest as manifests
from .foreign_manifest import CHECKPOINTS
from .manifest import Damaged, Manifest
from .mirror import Mirror

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from .ranks import Ranks


class Copies(Mirror):
    """One prefix on a storage, for the rank that leads on one storage of the job.

    Raises:
        CheckpointError: what is needed for this kind of storage is not installed.
    """

    def __init__(self, url: str, ranks: Ranks) -> None:
        super().__init__(url, CHECKPOINTS)
        self._ranks = ranks
        self._reasons: dict[str, str] = {}  # of whole copies, by name, so that each manifest is read once

    def push(self, path: str) -> None:
        """Uploads a sealed folder, its manifest last.

        Raises:
            OSError: it cannot be read, or the storage cannot be written.
            Damaged: it is not sealed any more.
        """
        manifest = sealed.open_sealed(path, self._ranks.host)
        target = _part_folder(os.path.basename(path), manifest.part)
        self._withdraw(target, self._manifests(target))
        names = [file.name for file in manifest.files]
        self._upload(path, [*names, manifests.name_of(manifest.host, manifest.part)], target)
        self._reasons[os.path.basename(path)] = manifest.reason

    def prune(self, keep: int, reasons: Collection[str], stays: str = "") -> None:
        """Deletes all but the newest; also what this disk has never had.

        Args:
            keep: how many whole ones stay.
            reasons: of those that may be deleted; with none given, all may.
            stays: name of one that stays in any case.

        Raises:
            OSError: the storage cannot be read or written.
        """
        kept = 0
        for step in sorted(self.steps(), reverse=True):
            name = CHECKPOINTS.name_of(step)
            if name not in self._reasons:
                try:
                    self._reasons[name] = self._manifest(name, 0).reason
                except Damaged:
                    continue
            kept += 1
            if kept > keep and name != stays and (not reasons or self._reasons[name] in reasons):
                self.drop(name)

    def fetch(self, folder: str, step: int) -> str:
        """Makes a copy a sealed checkpoint of the folder, once every byte of it is verified; its path.

        Raises:
            Damaged: it is not whole; the folder is as it was.
            OSError: the storage cannot be read, or the folder cannot be written.
        """
        name = CHECKPOINTS.name_of(step)
        first = self._manifest(name, 0)
        if first.step != step:
            raise Damaged(f"its manifest is that of step {first.step}")
        parts = [first, *(self._manifest(name, part) for part in range(1, first.parts))]
        if len({part.save for part in parts}) > 1:
            raise Damaged("its parts are of different saves")
        own = self._ranks.part
        parts.sort(key=lambda part: (part.part != own, part.part))
        with self._aside(folder, name) as path:
            for part in parts:
                self._fetch_part(name, part, path)
            sealed.seal(path, step, self._ranks, parts[0].run, parts[0].reason)
            folders.replace(f"{folder}/{name}", path)
        return f"{folder}/{name}"

    def _fetch_part(self, name: str, part: Manifest, path: str) -> None:
        """Copies those of a part's files that are not in the folder `path` yet, and verifies them."""
        for file in part.files:
            target = os.path.normpath(f"{path}/{file.name}")
            if not target.startswith(f"{path}/"):
                raise Damaged(f"its file {file.name!r} would be written outside its folder")
            if os.path.exists(target):
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            self._download(f"{_part_folder(name, part.part)}/{file.name}", target)
            manifests.check_file(path, file)

    def _manifest(self, name: str, part: int) -> Manifest:
        """The manifest of a part. Raises Damaged where there is none, OSError where the storage cannot be read."""
        folder = _part_folder(name, part)
        names = self._manifests(folder)
        if not names:
            raise Damaged("it was not uploaded to its end")
        manifest = manifests.parse(self._storage.read(f"{folder}/{names[0]}"), names[0])
        if manifest.part != part or len(names) > 1:
            raise Damaged(f"{names[0]} is not the manifest of its part {part}")
        return manifest


def _part_folder(name: str, part: int) -> str:
    """Where a part lies on the storage; the first one is right in the checkpoint's folder."""
    return f"{name}/part{part}" if part else name
