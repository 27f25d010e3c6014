"""Hands files of a checkpoint from the host that has written them to hosts with disks of their own.

Libraries write for hosts that share a folder: the model on the first rank alone, or a part of it on each, and all ranks
look for all of it when they load. What a host has itself stays as it is; the rest comes to lie beside it, outside its
manifest, so that it is verified again by the next run.
"""

from __future__ import annotations

import contextlib
import io
import os
import time

from . import manifest as manifests
from .blocks import BLOCK
from .errors import CheckpointError
from .manifest import Damaged, FileEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from .ranks import Ranks

_HALF = ".handed"  # ends the name of a file that is still on its way


def complete(path: str, own: Sequence[FileEntry], ranks: Ranks, lacks: Collection[str] | None = None) -> tuple[int, int]:
    """Brings files that other hosts have of a checkpoint into its folder here. Collective.

    Args:
        path: the checkpoint's folder, the same name on all hosts.
        own: what this host's manifest lists, which is verified; of ranks that do not lead on their storage it is ignored.
        lacks: names of the files that are to come here; None for all that others have.

    Returns:
        The number of files that came here, and their bytes.

    Raises:
        Damaged: a file did not arrive as it was written; on all ranks.
        CheckpointError: a file could not be written here; on all ranks.
    """
    held = ranks.gather({file.name: file for file in own} if ranks.leads else {})
    owners = {name: rank for rank in reversed(range(len(held))) for name in held[rank]}  # the first that has it
    names = owners if lacks is None else owners.keys() & set(lacks)
    wanted = [name for name in names if name not in held[ranks.rank] and not _is_here(path, held[owners[name]][name])]
    wants = ranks.gather(set(wanted) if ranks.leads else set())
    damaged = unwritable = ""
    count = size = 0
    for name, owner in sorted(owners.items(), key=lambda pair: (pair[1], pair[0])):
        file = held[owner][name]
        if owner == ranks.rank:
            send(f"{path}/{name}", file.size, [rank for rank, names in enumerate(wants) if name in names], ranks)
        elif name in wants[ranks.rank]:
            try:
                receive(path, file, owner, ranks)
            except Damaged as error:
                damaged = damaged or f"it did not come whole from rank {owner}: {error}"
            except OSError as error:
                unwritable = unwritable or f"{path}/{name}, which rank {owner} has, cannot be written: {error.strerror}"
            count, size = count + 1, size + file.size
    answers = ranks.gather((unwritable, damaged)) if any(wants) else []
    if first := next((text for text, _ in answers if text), ""):
        raise CheckpointError(first)
    if first := next((text for _, text in answers if text), ""):
        raise Damaged(first)
    return count, size


def _is_here(path: str, file: FileEntry) -> bool:
    """Whether an earlier run, or the platform, has brought the file."""
    try:
        manifests.check_file(path, file)
    except Damaged:
        return False
    return True


def send(path: str, size: int, targets: Sequence[int], ranks: Ranks, pause: Callable[[float], object] | None = None) -> None:
    """Sends exactly `size` bytes; what cannot be read is sent as zeros, which the others' checksums tell.

    Args:
        pause: is called after each block with the seconds that it took.
    """
    if not targets:
        return
    with contextlib.ExitStack() as stack:
        try:
            source: Any = stack.enter_context(open(path, "rb"))
        except OSError:
            source = io.BytesIO()
        for start in range(0, size, BLOCK):
            want, began = min(BLOCK, size - start), time.monotonic()
            try:
                block = source.read(want)
            except OSError:
                block = b""
            for target in targets:
                ranks.send(block.ljust(want, b"\0"), target)
            if pause is not None:
                pause(time.monotonic() - began)


def receive(path: str, file: FileEntry, owner: int, ranks: Ranks) -> None:
    """Takes all of a file's bytes, also if they cannot be written, and verifies what it wrote.

    Raises:
        Damaged: it is not what its owner has written.
        OSError: it cannot be written.
    """
    trouble: OSError | None = None
    target, half = f"{path}/{file.name}", f"{path}/{file.name}{_HALF}"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(half, "wb").close()
    except OSError as error:
        trouble = error
    for start in range(0, file.size, BLOCK):
        block = ranks.receive(min(BLOCK, file.size - start), owner)
        if trouble is None:
            try:
                with open(half, "ab") as out:
                    out.write(block)
            except OSError as error:
                trouble = error
    try:
        if trouble is not None:
            raise trouble
        manifests.check_file(path, file.replace(name=f"{file.name}{_HALF}"))
        os.replace(half, target)
    finally:
        try:
            os.unlink(half)
        except OSError:
            pass
