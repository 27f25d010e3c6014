"""Copies, on another storage, of the folders `checkpoint-<step>` that a library has written and we have sealed.

    <url>/checkpoint-1200/            as it is here: the library's files, then <host>.part0.manifest
    <url>/checkpoint-1200/part1/      and what the second host has, where hosts have disks of their own

As in a folder, what has no manifest does not exist; each part has one of its own, written last. A host whose disk has
nothing gets the files of all parts, its own first: libraries write the model on the first host alone.
"""

from __future__ import annotations

import os
import secrets

from . import folder as folders
from . import manifest as manifests
from . import sealed
from .manifest import SUFFIX, Damaged, Manifest
from .storage import open_storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from .ranks import Ranks


class Copies:
    """One prefix on a storage, for the rank that leads on one storage of the job.

    Raises:
        CheckpointError: what is needed for this kind of storage is not installed.
    """

    def __init__(self, url: str, ranks: Ranks) -> None:
        self._storage, self._ranks = open_storage(url), ranks
        self.url = self._storage.url
        self._reasons: dict[str, str] = {}  # of whole copies, by name, so that each manifest is read once

    def steps(self) -> list[int]:
        """Steps that have a copy, whole or not, in no order. Raises OSError where the storage cannot be read."""
        return [int(match[1]) for match in map(sealed.NAME.fullmatch, self._storage.names()) if match]

    def push(self, path: str) -> None:
        """Uploads a sealed folder, its manifest last.

        Raises:
            OSError: it cannot be read, or the storage cannot be written.
            Damaged: it is not sealed any more.
        """
        one = sealed.open_sealed(path, self._ranks.host)
        target = _part(os.path.basename(path), one.part)
        manifests.withdraw(self._storage, target)  # none must vouch for a mixture
        for file in one.files:
            self._storage.put(f"{path}/{file.name}", f"{target}/{file.name}")
        name = manifests.name_of(one.host, one.part)
        self._storage.put(f"{path}/{name}", f"{target}/{name}")
        self._reasons[os.path.basename(path)] = one.reason

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
            name = f"checkpoint-{step}"
            if name not in self._reasons:
                try:
                    self._reasons[name] = self._manifest(name, 0).reason
                except Damaged:
                    continue
            kept += 1
            if kept > keep and name != stays and (not reasons or self._reasons[name] in reasons):
                manifests.withdraw(self._storage, name)
                self._storage.remove_folder(name)

    def fetch(self, folder: str, step: int) -> str:
        """Makes a copy a sealed checkpoint of the folder, once every byte of it is verified; its path.

        Raises:
            Damaged: it is not whole; the folder is as it was.
            OSError: the storage cannot be read, or the folder cannot be written.
        """
        name = f"checkpoint-{step}"
        first = self._manifest(name, 0)
        if first.step != step:
            raise Damaged(f"its manifest is that of step {first.step}")
        parts = [first, *(self._manifest(name, part) for part in range(1, first.parts))]
        if len({part.save for part in parts}) > 1:
            raise Damaged("its parts are of different saves")
        own = self._ranks.part
        parts.sort(key=lambda part: (part.part != own, part.part))
        aside = f"{folder}/{folders.ASIDE}fetch-{secrets.token_hex(4)}"
        path = f"{aside}/{name}"
        try:
            os.makedirs(path)
            for part in parts:
                for file in part.files:
                    target = os.path.normpath(f"{path}/{file.name}")
                    if not target.startswith(f"{path}/"):
                        raise Damaged(f"its file {file.name!r} would be written outside its folder")
                    if os.path.exists(target):
                        continue
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    self._get(f"{_part(name, part.part)}/{file.name}", target)
                    manifests.check_file(path, file)
            sealed.seal(path, step, self._ranks, parts[0].run, parts[0].reason)
            folders.replace(f"{folder}/{name}", path)
        finally:
            folders.remove_tree(aside)
        return f"{folder}/{name}"

    def _manifest(self, name: str, part: int) -> Manifest:
        """The manifest of a part. Raises Damaged where there is none, OSError where the storage cannot be read."""
        place = _part(name, part)
        names = [one for one in self._storage.names(place) if one.endswith(SUFFIX)]
        if not names:
            raise Damaged("it was not uploaded to its end")
        one = manifests.parse(self._storage.read(f"{place}/{names[0]}"), names[0])
        if one.part != part or len(names) > 1:
            raise Damaged(f"{names[0]} is not the manifest of its part {part}")
        return one

    def _get(self, name: str, target: str) -> None:
        folder, _, last = name.rpartition("/")
        try:
            self._storage.get(name, target)
        except OSError:
            if last not in self._storage.names(folder):
                raise Damaged(f"{last} is missing") from None
            raise


def _part(name: str, part: int) -> str:
    """Where a part lies on the storage; the first one is the checkpoint itself, for whoever looks for one."""
    return f"{name}/part{part}" if part else name
