"""Checkpoints that another library has written, sealed with a manifest.

The library saves as usual; then everything is fsynced, and a manifest with sizes and checksums is written last. A folder
without a manifest, or with a wrong one, is never resumed from.
"""

from __future__ import annotations

import os

from . import manifest as manifests
from .blocks import BLOCK, checksums_of, sync_folder
from .folder import Naming
from .manifest import Damaged, FileEntry, Manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .ranks import Ranks

CHECKPOINTS = Naming(prefix="checkpoint-")  # folders that a library has saved to


def unseal(path: str) -> None:
    """Deletes the manifests before a folder is written to again: they must not validate a mix of two saves."""
    try:
        names = [name for name in os.listdir(path) if name.endswith(manifests.SUFFIX)]
    except OSError:
        return
    for name in names:
        os.unlink(f"{path}/{name}")
    sync_folder(path)


def seal(path: str, step: int, ranks: Ranks, run: dict[str, Any], reason: str = "") -> None:
    """Makes a folder durable and writes its manifest. The leading rank of each storage calls it, after all have written.

    Args:
        run: what the next run needs to know (`policy.History`).
        reason: why it was saved.

    Raises:
        OSError: the folder cannot be read back or written.
    """
    entries = []
    for root, folders, names in os.walk(path):
        for name in sorted(names):
            if not name.endswith((".manifest", ".tmp")):
                entries.append(_entry(path, os.path.relpath(f"{root}/{name}", path)))
        for folder in folders:
            sync_folder(f"{root}/{folder}")
    sync_folder(path)
    manifests.write(
        path,
        manifests.of_ranks(
            ranks,
            step=step,
            save=f"{ranks.token}-{step}",
            complete=True,
            files=tuple(entries),
            reason=reason,
            run=run,
        ),
    )
    sync_folder(path)
    sync_folder(os.path.dirname(path))


def _entry(folder: str, name: str) -> FileEntry:
    fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        size = os.fstat(fd).st_size
        sums = checksums_of(fd, size)
    finally:
        os.close(fd)
    return FileEntry(name=name, size=size, crc32=tuple(sums), block=BLOCK)


def open_sealed(path: str, host: str = "") -> Manifest:
    """The manifest of a sealed folder; its files are not read.

    Args:
        host: this host's name; where several hosts' manifests lie together, its own counts.

    Raises:
        Damaged: there is no manifest, or it belongs to another folder.
    """
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(manifests.SUFFIX))
    except OSError as error:
        raise Damaged(error.strerror or "cannot be read") from error
    if not names:
        raise Damaged("it was not finished (there is no manifest)")
    own = [name for name in names if host and name.startswith(f"{host}.part")]
    manifest = manifests.read(f"{path}/{(own or names)[0]}")
    if not path.endswith(f"-{manifest.step}"):
        raise Damaged(f"its manifest is that of step {manifest.step}")
    return manifest


def check(path: str, host: str = "") -> Manifest:
    """The manifest of a sealed folder whose files are all as they were written; arguments as `open_sealed`.

    Raises:
        Damaged: the folder must not be used.
    """
    manifest = open_sealed(path, host)
    for file in manifest.files:
        manifests.check_file(path, file)
    return manifest
