"""A folder of checkpoints: their names, which of them are whole, how one is published and how old ones are deleted.

    <folder>/step-000000001200/             a checkpoint: it exists only once it is whole
        algo-1.rank0.safetensors            tensors of one rank, named by host and rank
        algo-1.rank0.objects                everything else of that rank
        algo-1.part0.manifest               sizes and checksums
    <folder>/.aside-step-...-<save>-<part>  being written
    <folder>/.gone-step-...                 being deleted

Nothing here needs torch.
"""

from __future__ import annotations

import os
import re

from trainshed.base.files import remove
from trainshed.base.record import Record

from . import manifest as manifests
from .blocks import sync_folder
from .manifest import Damaged, Manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ASIDE = ".aside-"
GONE = ".gone-"


class Naming(Record):
    """How checkpoints of one kind are named: a prefix and the step, with at least so many digits."""

    prefix: str
    digits: int = 1

    def name_of(self, step: int) -> str:
        """The name of a step's checkpoint."""
        return f"{self.prefix}{step:0{self.digits}d}"

    def step_of(self, name: str) -> int | None:
        """The step in a checkpoint's name; None where the name is not of this kind."""
        number = name.removeprefix(self.prefix)
        if not (number.isascii() and number.isdigit()):
            return None
        return int(number) if self.name_of(int(number)) == name else None


STEPS = Naming(prefix="step-", digits=12)  # names sort as their steps do


class Found(Record):
    """A checkpoint whose manifests are there and fit together; its data files have not been read yet."""

    step: int
    path: str
    parts: tuple[Manifest, ...]

    @property
    def size(self) -> int:
        """Bytes of data."""
        return sum(part.size for part in self.parts)


class Skipped(Record):
    """A folder entry that looks like a checkpoint and must not be used."""

    path: str
    why: str

    def line(self) -> str:
        """The line for the user."""
        return f"{os.path.basename(self.path)} passed over: {self.why}"


def scan(folder: str) -> tuple[list[Found], list[Skipped]]:
    """The checkpoints in a folder, newest first, checked by manifests and file sizes alone, and what was passed over."""
    try:
        names = sorted((name for name in os.listdir(folder) if STEPS.step_of(name) is not None), reverse=True)
    except OSError:
        return [], []
    whole: list[Found] = []
    skipped: list[Skipped] = []
    for name in names:
        try:
            whole.append(open_checkpoint(f"{folder}/{name}"))
        except Damaged as error:
            skipped.append(Skipped(path=f"{folder}/{name}", why=str(error)))
    return whole, skipped


def open_checkpoint(path: str, *, any_name: bool = False) -> Found:
    """The checkpoint at `path`, after a look at manifests and sizes.

    Args:
        any_name: the folder may have any name; else the name must be that of the step in the manifests.

    Raises:
        Damaged: it is not whole, or not a checkpoint of this package.
    """
    step = STEPS.step_of(os.path.basename(path))
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(".manifest") and not name.startswith("."))
    except OSError as error:
        raise Damaged(error.strerror or "cannot be read") from error
    if not names:
        raise Damaged("there is no manifest: the copy is incomplete, or it was made by another program")
    parts = [manifests.read(f"{path}/{name}") for name in names]
    newest = max(parts, key=lambda part: part.created)
    parts = sorted((part for part in parts if part.save == newest.save), key=lambda part: part.part)
    if not any_name and (step is None or any(part.step != step for part in parts)):
        raise Damaged(f"its manifest is that of step {parts[0].step}")
    if not newest.complete and len(parts) < newest.parts:
        hosts = ", ".join(part.host for part in parts)
        raise Damaged(f"only {len(parts)} of its {newest.parts} parts are here (those of {hosts})")
    for part in parts:
        for file in part.files:
            try:
                size = os.stat(f"{path}/{file.name}").st_size
            except OSError as error:
                raise Damaged(f"{file.name} is missing") from error
            if size != file.size:
                raise Damaged(f"{file.name} has {size} bytes instead of {file.size}")
    return Found(step=parts[0].step, path=path, parts=tuple(parts))


def verify(checkpoint: Found, share: int = 0, of: int = 1) -> None:
    """Reads the data files and compares their checksums; with `of` readers, only the share of one of them.

    Raises:
        Damaged: a file is missing or differs from what was written.
    """
    files = [file for part in checkpoint.parts for file in part.files]
    for file in files[share::of]:
        manifests.check_file(checkpoint.path, file)


def make_aside(folder: str, name: str, save: str, part: int) -> str:
    """The hidden folder in which one part of the checkpoint `name` is written; created if needed. Raises OSError."""
    path = aside_of(folder, name, save, part)
    os.makedirs(path, exist_ok=True)
    return path


def aside_of(folder: str, name: str, save: str, part: int) -> str:
    """The path of that folder."""
    return f"{folder}/{ASIDE}{name}-{save}-{part}"


def publish(path: str, aside: str, manifest: Manifest) -> str:
    """Writes the manifest and makes the checkpoint `path` exist: everything durable, then one rename. Raises OSError."""
    manifests.write(aside, manifest)
    return _become(aside, path)


def adopt(folder: str, path: str) -> str:
    """Makes a checkpoint that was copied from elsewhere, and verified, exist in the folder. Raises OSError."""
    for name in os.listdir(path):
        fd = os.open(f"{path}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    return _become(path, f"{folder}/{os.path.basename(path)}")


def _become(aside: str, final: str) -> str:
    sync_folder(aside)
    replace(final, aside)
    return final


def replace(final: str, aside: str) -> None:
    """Renames a durable folder to `final` and deletes what had that name before, never in part. Raises OSError.

    Both names change in one step where the file system can do that, so a kill leaves the old folder or the new one.
    Elsewhere there is a moment without the name: see `recover`.
    """
    folder, name = os.path.split(final)
    old = ""
    if os.path.lexists(final):
        if _exchange(final, aside):
            old = aside
        else:
            old = f"{folder}/{GONE}{name}-{os.getpid()}"
            remove_tree(old)
            os.rename(final, old)
    if old != aside:
        os.rename(aside, final)
    sync_folder(folder)
    if old:
        remove_tree(old)


def recover(path: str) -> bool:
    """Gives a checkpoint its name back if a kill between the two renames of `replace` has taken it.

    The newest of the folders that are complete but for their name gets it. For the rank that leads on its storage,
    while no rank writes.

    Returns:
        Whether there was something to recover.

    Raises:
        OSError: the folder cannot be written.
    """
    if os.path.lexists(path):
        return False
    folder, name = os.path.split(path)
    complete = []
    for left in _left_of(folder, name):
        try:
            files = [name for name in os.listdir(f"{folder}/{left}") if name.endswith(manifests.SUFFIX)]
            created = [manifests.read(f"{folder}/{left}/{file}").created for file in files if not file.startswith(".")]
        except (Damaged, OSError):
            continue
        if created:
            complete.append((max(created), left))
    if not complete:
        return False
    os.rename(f"{folder}/{max(complete)[1]}", path)
    sync_folder(folder)
    return True


def _left_of(folder: str, name: str) -> list[str]:
    """Names of what interrupted runs have left of one checkpoint."""
    quoted = re.escape(name)
    left = re.compile(rf"{re.escape(ASIDE)}{quoted}-[0-9a-f]+-\d+|{re.escape(GONE)}{quoted}-\d+")
    try:
        return [entry for entry in os.listdir(folder) if left.fullmatch(entry)]
    except OSError:
        return []


def _exchange(one: str, other: str) -> bool:
    """Swaps two names atomically; False where kernel, C library or file system cannot."""
    import ctypes

    at_working_folder, flag_exchange = -100, 2  # <fcntl.h>, <linux/fs.h>
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = (at_working_folder, os.fsencode(one), at_working_folder, os.fsencode(other))
    return rename(*names, flag_exchange) == 0


def sweep(folder: str, *, of_name: str = "", of_run: str = "", keep: str = "") -> int:
    """Deletes what interrupted runs have left half-written or half-deleted; returns how many there were.

    Args:
        of_name: only what belongs to the checkpoint of this name.
        of_run: only what belongs to saves of this run. Without either, all of it: at the start of a run, before any write.
        keep: the save that stays.
    """
    try:
        names = [name for name in os.listdir(folder) if name.startswith((ASIDE, GONE))]
    except OSError:
        return 0
    if of_name:
        names = _left_of(folder, of_name)
    names = [name for name in names if f"-{of_run}" in name and not (keep and f"-{keep}-" in name)]
    for name in names:
        remove_tree(f"{folder}/{name}")
    return len(names)


def prune(folder: str, *, keep_last: int, keep_every: int = 0, best: Iterable[int] = ()) -> list[int]:
    """Deletes old checkpoints; returns their steps.

    Args:
        keep_last: how many of the newest whole ones stay.
        keep_every: whole ones whose step is a multiple of this stay too; 0 for none.
        best: steps that stay in any case.
    """
    whole, _ = scan(folder)
    keep = {checkpoint.step for checkpoint in whole[:keep_last]} | set(best)
    keep |= {checkpoint.step for checkpoint in whole if keep_every and checkpoint.step % keep_every == 0}
    old = [checkpoint for checkpoint in whole if checkpoint.step not in keep]
    for checkpoint in old:
        vanish(checkpoint.path)
    return [checkpoint.step for checkpoint in old]


def best_steps(folder: str, metric: str, mode: str, count: int = 1) -> list[int]:
    """The steps of the `count` checkpoints with the lowest (`min`) or highest (`max`) value of a metric."""
    whole, _ = scan(folder)
    metrics = [(checkpoint.parts[0].metrics, checkpoint.step) for checkpoint in whole]
    values = [(values[metric], step) for values, step in metrics if metric in values]
    values = [item for item in values if item[0] == item[0]]  # NaN is never best
    return [step for _, step in sorted(values, reverse=mode == "max")[:count]]


def vanish(path: str) -> None:
    """Deletes a checkpoint so that no half of it is ever visible: renamed first, then deleted."""
    folder, name = os.path.split(path)
    gone = f"{folder}/{GONE}{name}-{os.getpid()}"
    remove_tree(gone)
    try:
        os.rename(path, gone)
    except FileNotFoundError:
        return
    remove_tree(gone)


def remove_tree(path: str) -> None:
    """Deletes a folder and all in it (or a file), as far as that is allowed; never raises."""
    import shutil

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        remove(path)
