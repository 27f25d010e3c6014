"""One checkpoint folder of any name, written by several ranks: for parts of trainshed that bring their own tensors.

The pipeline saves through this. The promise is that of a Checkpointer: a checkpoint is whole and verified, or it does not
exist. The calls are collective and synchronous: every rank of the job makes them together and gets the same outcome.

    parts.save(path, {"model/0.weight": tensor, ...}, {"groups": [...]}, copy_to=url, group=control_group)

    saved = parts.load(path, copy_to=url, group=control_group)  # every byte verified
    saved.stored            # {"model/0.weight": (torch.float32, (64, 8)), ...} of all ranks
    saved.fill(tensors)     # {"model/0.weight": tensor to write into}: plain tensors and DTensors
    saved.objects[0]        # what rank 0 gave: {"groups": [...]}

    parts.prune(folder, keep=2, belongs=lambda name: name.endswith("_partial"), group=control_group)

What a rank gives to `save`:

- **tensors** by name. Names are the only thing that connects saving and loading, so choose them by
  what a tensor is (`model/<parameter>`, `optimizer/<parameter>/exp_avg`), never by rank. A plain tensor
  must be whole. Where several ranks give the same name, their values must be equal: it is written once,
  by one of them. A rank gives a DTensor as it is: each rank writes its shards. Any number of ranks, with
  any sharding, reads them again.
- **objects**: a tree of plain values (numbers, strings, lists, tuples, dicts, small tensors), one for
  each rank. What `torch.load(weights_only=True)` would refuse is refused when saving, on all ranks, with
  the name of the class.

How it is written: each rank writes `<host>.rank<n>.safetensors` and `<host>.rank<n>.objects` into a
hidden folder beside `path`, fsynced, with a CRC-32 of each 16 MiB. Only when all ranks have done so does
the leading rank of each storage write the manifest, last, and rename the folder to `path`. A checkpoint
that was there before stays until that moment and is replaced in one step. If any rank fails, all raise
the same CheckpointError and the older checkpoint stays. Hosts with disks of their own each publish their
part at the same `path`; together in one folder (as a platform that uploads all of them to one prefix has
them) the parts are the checkpoint. If one storage fails at the very last step, the rename, others may
have published already; `load` then refuses the mixture.

While saving, each rank needs host memory for a copy of 64 MiB of its share, or of its largest tensor: what is more goes
into files of its own, `<host>.rank<n>.1.safetensors` and so on.
"""

from __future__ import annotations

import io
import os

import torch

from trainshed.base.voice import tell

from . import folder as folders
from . import manifest as manifests
from . import storage_check as ground
from .buffers import SnapshotMemory
from .errors import CheckpointError
from .fill import fill
from .folder import Found
from .load import Contents
from .manifest import Damaged
from .ranks import Ranks, current
from .save import check_space, explain, write_files
from .shardfile import Layout, Piece
from .snapshots import objects_file, tensors_file
from .write_plan import Planner, tensor_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from .manifest import FileEntry
    from .remote import Remote

    Result = TypeVar("Result")

# Bytes of tensors in one file, at most; a larger tensor has one for itself.
_PORTION = 64 << 20


class Saved:
    """A checkpoint whose every byte has been verified.

    step: what was given to `save`.
    objects: what each rank gave, by rank.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.step = contents.checkpoint.parts[0].step
        self.objects: dict[int, Any] = contents.trees()

    @property
    def stored(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and whole shape of every tensor, by name."""
        return self._contents.stored

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies stored values into this rank's tensors, casting to their types. Not collective.

        Args:
            tensors: plain tensors of the stored whole shape, or DTensors of it, on any device.

        Raises:
            ValueError: a tensor is not stored, stored with another shape, or not in full.
        """
        fill(self._contents, tensors)


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, torch.Tensor],
    objects: Any = None,
    *,
    step: int = 0,
    reason: str = "",
    copy_to: str = "",
    group: Any = None,
) -> None:
    """Makes this rank's tensors and objects a part of the checkpoint at `path`. Collective; returns when it is durable.

    Args:
        path: the checkpoint's folder; it gets this name only when it is whole, and replaces what has the name.
        tensors, objects: see the module.
        step: number of training steps done; kept in the manifest.
        reason: why it is saved; kept in the manifest.
        copy_to: URL of a storage where a copy is put under the same name; it is uploaded before this returns.
            A copy that cannot be made is a warning on stderr: the checkpoint here is whole.
        group: a gloo process group of all ranks, to be used for the agreement; without one, a group is created.

    Raises:
        CheckpointError: nothing was saved (on all ranks, with the first rank's reason); an older checkpoint at `path` stays.
    """
    ranks = current(group)
    try:
        _save(ranks, os.path.abspath(path), tensors, objects, step, reason, copy_to)
    finally:
        ranks.close()


def _save(
    ranks: Ranks, path: str, tensors: Mapping[str, torch.Tensor], objects: Any, step: int, reason: str, copy_to: str
) -> None:
    folder, name = os.path.split(path)
    _share(ranks, folder, name)
    _together(ranks, path, lambda: _check_objects(objects))
    remote = _remote(ranks, path, copy_to)
    planner = Planner(ranks)
    planner.update(tensors)
    layouts = [Layout(pieces) for pieces in _portions(planner.share)]
    save = f"{ranks.token}1"

    def begin() -> str:
        if ranks.leads:  # what is left of this checkpoint is from a run that was killed: only this run writes it now
            folders.recover(path)
            folders.sweep(folder, of_name=name)
            check_space(folder, planner.bytes_on_storage)
            return folders.make_aside(folder, name, save, ranks.part)
        return ""

    def write() -> list[FileEntry]:
        memory, aside = SnapshotMemory(), asides[ranks.peers[0]]
        buffer = memory.reserve(max(layout.memory for layout in layouts))
        buffer.ready()
        written = write_files(aside, [objects_file(ranks, objects)])
        for number, layout in enumerate(layouts):
            memory.copy([tensor_of(piece, tensors) for piece in layout.pieces], layout.views(buffer.bytes_))
            memory.wait()
            written += write_files(aside, [tensors_file(ranks, layout, buffer, number)])
        return written

    def publish() -> None:
        if ranks.leads:
            files = tuple(entry for rank in ranks.peers for entry in entries[rank])
            manifest = manifests.of_ranks(ranks, step=step, save=save, complete=planner.complete, files=files, reason=reason)
            folders.publish(path, asides[ranks.rank], manifest)

    asides = _together(ranks, path, begin)
    try:
        entries = _together(ranks, path, write)
        _together(ranks, path, publish)
    except BaseException:
        if ranks.leads:
            folders.remove_tree(asides[ranks.rank])
        raise
    if remote is not None:
        try:
            remote.push(path)
        except OSError as error:
            _say(f"WARNING: {path} has no copy: {explain(error)}")


def _portions(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """What goes into one file after the other: the memory for a copy of all would be as much as the state itself."""
    portions: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if size and size + piece.nbytes > _PORTION:
            portions.append([])
            size = 0
        portions[-1].append(piece)
        size += piece.nbytes
    return portions


def load(path: str | os.PathLike[str], *, copy_to: str = "", group: Any = None) -> Saved:
    """Opens the checkpoint at `path` and verifies every byte; the ranks of one storage divide the reading. Collective.

    Args:
        copy_to: URL of the storage with copies; a host that has no whole checkpoint at `path` fetches it from there.
        group: as for `save`.

    Raises:
        CheckpointError: there is no whole checkpoint, or hosts have different ones (on all ranks).
    """
    ranks = current(group)
    path = os.path.abspath(path)
    try:
        _prepare_to_read(ranks, path, copy_to)
        remote = _remote(ranks, path, copy_to)
        problems = ranks.gather(_problem(path, ranks))
        problem = next((text for text in problems if text), "")
        if problem and not copy_to:
            raise CheckpointError(f"{path}: {problem}")
        if problem:
            here = not any(problems[rank] for rank in ranks.peers)
            _together(ranks, path, lambda: _fetch(None if here else remote, path))
        return _saved(ranks, path)
    finally:
        ranks.close()


def _prepare_to_read(ranks: Ranks, path: str, copy_to: str) -> None:
    """Finds out which ranks share the storage, and recovers the checkpoint's name if a killed save has taken it.

    Raises:
        CheckpointError: the folder cannot be written although a copy may have to be fetched (on all ranks).
    """
    try:
        _share(ranks, *os.path.split(path))
    except CheckpointError:
        if copy_to:
            raise
        ranks.peers = (ranks.rank,)  # where nothing can be written, each rank verifies everything by itself
    else:
        _together(ranks, path, lambda: folders.recover(path) if ranks.leads else False)


def _problem(path: str, ranks: Ranks) -> str:
    """Why the checkpoint must not be used, "" if it may be; this rank reads its share of the storage's files."""
    try:
        folders.verify(_open(path), ranks.peers.index(ranks.rank), len(ranks.peers))
    except Damaged as error:
        return str(error)
    return ""


def _fetch(remote: Remote | None, path: str) -> None:
    """Fetches the checkpoint from the copies, if this rank has to. Raises Damaged, OSError."""
    if remote is None:
        return
    folder, name = os.path.split(path)
    try:
        remote.fetch(folder, name)
    except Damaged as error:
        raise Damaged(f"{remote.url}/{name}: {error}") from error
    _say(f"fetched {remote.url}/{name}")


def _saved(ranks: Ranks, path: str) -> Saved:
    """The checkpoint that has been verified on all ranks. Raises CheckpointError."""
    opened: list[Saved] = []

    def open_it() -> str:
        found = _open(path)
        opened.append(Saved(Contents(found)))
        return found.parts[0].save

    if len(set(_together(ranks, path, open_it))) > 1:
        raise CheckpointError(f"{path}: the hosts have different checkpoints under this name")
    return opened[0]


def prune(
    folder: str | os.PathLike[str],
    *,
    keep: int,
    belongs: Callable[[str], bool],
    copy_to: str = "",
    group: Any = None,
) -> list[str]:
    """Deletes all but the newest whole checkpoints of a folder, never in part; returns the names deleted here. Collective.

    Args:
        keep: how many whole ones stay, at least 1.
        belongs: whether a name is one of those that count; all others are left alone.
        copy_to: URL of the storage with copies; the copies of what is deleted here are deleted too.
        group: as for `save`.

    Raises:
        ValueError: `keep` is less than 1.
        CheckpointError: the folder cannot be read or written (on all ranks).
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    ranks = current(group)
    folder = os.path.abspath(folder)
    try:
        _share(ranks, folder, "probe")
        remote = _remote(ranks, folder, copy_to)
        return _together(ranks, folder, lambda: _prune(folder, keep, belongs, remote) if ranks.leads else [])[ranks.peers[0]]
    finally:
        ranks.close()


def _prune(folder: str, keep: int, belongs: Callable[[str], bool], remote: Remote | None) -> list[str]:
    whole: list[tuple[float, str]] = []
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and belongs(entry.name):
            try:
                whole.append((_open(entry.path).parts[0].created, entry.name))
            except Damaged:
                continue
    names = [name for _, name in sorted(whole, reverse=True)[keep:]]
    for name in names:
        folders.vanish(f"{folder}/{name}")
        if remote is not None:
            try:
                remote.drop(name)
            except OSError as error:
                _say(f"WARNING: the copy of {name} could not be deleted: {explain(error)}")
    return names


def _open(path: str) -> Found:
    """Raises Damaged."""
    return folders.open_checkpoint(path, any_name=True)


def _remote(ranks: Ranks, path: str, url: str) -> Remote | None:
    """The storage of the copies, on the rank that leads on its storage. Raises CheckpointError on all ranks."""
    if not url:
        return None
    opened: list[Remote] = []

    def open_it() -> None:
        if ranks.leads:
            from .remote import Remote

            opened.append(Remote(url))

    _together(ranks, path, open_it)
    return opened[0] if opened else None


def _share(ranks: Ranks, folder: str, name: str) -> None:
    """Finds out which ranks see the same folder; creates it. Raises CheckpointError on all ranks."""
    try:
        ranks.share_storage(folder, name)
        problem = ""
    except OSError as error:
        problem = ground.unwritable(folder, error)
    problem = next((text for text in ranks.gather(problem) if text), "")
    if problem:
        raise CheckpointError(problem)


def _check_objects(objects: Any) -> None:
    """Raises ValueError for objects that could not be loaded again."""
    blob = io.BytesIO()
    try:
        torch.save(objects, blob)
    except Exception as error:
        raise ValueError(f"an object cannot be stored in a checkpoint: {error}") from error
    blob.seek(0)
    names = torch.serialization.get_unsafe_globals_in_checkpoint(blob)
    if names:
        raise ValueError(f"an object of type {names[0]} cannot be stored in a checkpoint; use plain values and tensors")


def _together(ranks: Ranks, path: str, action: Callable[[], Result]) -> list[Result]:
    """Runs `action` on every rank; every rank's result, in order of ranks.

    Raises:
        CheckpointError: it failed on some rank; the same message on all of them.
    """
    failure: Exception | None = None
    result: Any = None
    problem = ""
    try:
        result = action()
    except Exception as error:  # the other ranks wait for this one
        failure = error
        problem = explain(error) or type(error).__name__
    answers = ranks.gather((problem, result))
    for rank, (text, _) in enumerate(answers):
        if text:
            raise CheckpointError(f"{path}: {text}" + (f" (rank {rank})" if ranks.world_size > 1 else "")) from failure
    return [value for _, value in answers]


def _say(line: str) -> None:
    tell(line)
