"""Copies of the state in the hosts' memory (files in /dev/shm), which outlive the ranks.

    /dev/shm/trainshed-<train>-memory/<folder>-000000000012/   a copy: it exists once it is whole, here and at the neighbours
        algo-1.rank0.safetensors, .objects, algo-1.part0.manifest   this host's part, as in a checkpoint
        algo-2...                                                   a neighbour's: of replicated state its objects alone
    .<folder>.making/                                               being made

There are two: the older one becomes the next, so that its memory is used again. A part is sent to the `copies` hosts that
follow in a ring, beside the steps. The next copy waits for that, and is made after half of the steps that may be lost.

Who owns what: the loop's thread calls all methods. The writer's thread has the folder `.making` from the end of `after` to
the end of its job, and meanwhile alone uses the group.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib

import psutil

from trainshed.base.files import listed
from trainshed.base.units import size as in_words
from trainshed.machine.cgroup import memory_limit, memory_used
from trainshed.machine.scratch import SHARED_MEMORY, memory_folder

from . import manifest as manifests
from . import peer_copy
from . import ranks as ranks_module
from .blocks import BLOCK, checksums
from .buffers import Buffer, SnapshotMemory
from .errors import CheckpointError
from .folder import Found, Naming, remove_tree
from .manifest import Damaged, FileEntry, Manifest
from .replicas import check_replicas
from .save import SaveError, await_entries, explain, note_of, report, write_files
from .shardfile import Layout
from .snapshots import capture, objects_file
from .write_plan import Planner, tensor_of
from .writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from trainshed.contract.wire.checkpoint_memory import Memory

    from .ranks import Ranks

    Say = Callable[..., None]

_OWNERS = "owners"  # in a manifest's `run`: the ids of the `train` of each host
_NOTHING = b"-"  # sent by a host that could not make its part
_OBJECTS = ".objects"


def memory_of(folder: str, states: Sequence[Any], wanted: Memory, say: Say) -> MemoryCopies | None:
    """The copies in memory of one Checkpointer; None where they cannot be kept, with a line that says why. Collective.

    Args:
        folder: where its checkpoints lie.
        say: prints a line; `everywhere=True` on any rank.
    """
    held = memory_ranks(say)
    key = f"{zlib.crc32(os.fsencode(folder)):08x}"
    return None if held is None else MemoryCopies(held[0], key, held[1], states, wanted, say)


def memory_ranks(say: Say) -> tuple[str, Ranks] | None:
    """This host's folder in memory, and the ranks by whose hosts it is shared; None where there is none. Collective."""
    ranks = ranks_module.current()
    root = memory_folder(os.environ)
    problem = "" if root else "`train` keeps them, and it has not started this script"
    try:
        if root and not os.path.isdir(root):
            with contextlib.suppress(FileExistsError):  # made by another rank
                os.mkdir(root, 0o700)
        if root and os.lstat(root).st_uid != os.geteuid():
            problem = f"{root} is another user's"
    except OSError as error:
        problem = f"{root}: {error.strerror}"
    problem = next(filter(None, ranks.gather(problem)), "")
    try:
        if not problem:
            ranks.share_storage(root)
    except OSError as error:
        problem = f"{root}: {error.strerror}"
    if not problem:
        return root, ranks
    ranks.close()
    say(f"no copies in memory, checkpoints on disk alone: {problem}")
    return None


def shortage(root: str, needed: int) -> str:
    """Why so many bytes do not fit into this host's memory, with what the root holds now; "" if they do. Raises OSError."""
    folders = [entry.path for entry in os.scandir(root) if entry.is_dir()]
    held = sum(entry.stat().st_blocks * 512 for folder in folders for entry in os.scandir(folder))
    status = os.statvfs(root)
    if (free := status.f_bavail * status.f_frsize + held) < needed:
        return f"{SHARED_MEMORY} has {in_words(free)}, and copies need {in_words(needed)} (docker run --shm-size)"
    limit, used = memory_limit(), memory_used()
    free = min(psutil.virtual_memory().available, limit - used if limit and used else 1 << 62) + held
    return "" if free >= needed else f"the host's memory has {in_words(free)}, and copies need {in_words(needed)}"


class MemoryCopies:
    """The newest two copies on this host. All ranks construct it, and call its methods, together.

    Args:
        root: folder in memory of this host.
        key: names this training in there.
        ranks: whose storage is the root; is closed with this.
    """

    def __init__(self, root: str, key: str, ranks: Ranks, states: Sequence[Any], wanted: Memory, say: Say) -> None:
        self._root = root
        self._naming = Naming(prefix=f"{key}-", digits=12)
        self._making = f"{root}/.{key}.making"
        self._ranks = ranks
        self._states = states
        self._say = say
        self._interval = -(-wanted.every_steps // 2)
        hosts = ranks.gather((ranks.leads, os.path.basename(root)))
        self._owners = sorted({owner for _, owner in hosts})
        self._leaders = _leaders(ranks)
        self._copies = min(wanted.copies, ranks.parts - 1)
        self._planner = Planner(ranks)
        self._layout = Layout([])
        self._buffers: dict[int, Buffer] = {}  # by the inode of their file
        self._memory = SnapshotMemory()
        self._writer = Writer()
        self._hurry = threading.Event()
        self._good = self._pending = -1  # steps: of the newest copy that all hosts have, and of the one being made
        self._count = 0
        self.off = False  # whether no more are made

    # --- copies are made --------------------------------------------------------------------------

    def after(self, step: int, run: Mapping[str, Any]) -> None:
        """Makes a copy after a step where one is due. Collective.

        Args:
            run: the manifest's `run`.

        Raises:
            CheckpointError: the ranks' models have drifted apart.
        """
        if self.off or step % self._interval or step in (self._good, self._pending):
            return
        if not self._settled("" if (error := self._finished()) is None else explain(error) or type(error).__name__):
            return
        if self._pending >= 0:
            self._good, self._pending = self._pending, -1
        self._start(step, run)

    def _start(self, step: int, run: Mapping[str, Any]) -> None:
        """Copies the state, and starts what is done beside the steps. Collective."""
        tensors, tree = capture(self._states)
        if self._count & (self._count - 1) == 0:  # ever more seldom: all ranks exchange values for it
            check_replicas(self._ranks, self._states, tensors)
        if self._planner.update(tensors):
            self._layout = Layout(self._planner.share)
        if not self._settled(self._make_room()):
            return
        buffer, problem = self._open(next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None))
        if buffer is not None:
            self._copy(buffer, tensors)
        self._count += 1
        self._pending = step
        manifest = manifests.of_ranks(
            self._ranks,
            step=step,
            save=f"{self._ranks.token}{self._count:x}",
            complete=self._planner.complete,
            run={**run, _OWNERS: self._owners},
        )
        objects = objects_file(self._ranks, tree)
        self._hurry.clear()
        self._writer.start(lambda: self._publish(manifest, buffer, objects, problem))

    def _copy(self, buffer: Buffer, tensors: Mapping[str, Any]) -> None:
        """Copies the state into the buffer; from a GPU the copy is only started."""
        layout = self._layout
        buffer.ready()
        buffer.view[: len(layout.header)] = layout.header
        self._memory.copy([tensor_of(piece, tensors) for piece in layout.pieces], layout.views(buffer.bytes_))

    def _finished(self) -> BaseException | None:
        """Waits for the copy that is being made."""
        self._hurry.set()
        self._writer.wait()
        return self._writer.take_error()

    def _settled(self, problem: str) -> bool:
        """Whether no rank has a problem; with one there are no more copies, and the user is told why. Collective."""
        if not self._ranks.highest([bool(problem)])[0]:
            return True
        first = next(filter(None, self._ranks.gather(problem)))
        self._say(f"WARNING: no more copies in memory, checkpoints on disk alone: {first}")
        self.off = True
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()
        self.settle(-1)
        return False

    def _make_room(self) -> str:
        """On the leading rank: makes the older copy, or a new folder, the one to write to. Why it cannot, "" if it has."""
        if not self._ranks.leads:
            return ""
        try:
            old = [f"{self._root}/{name}" for step, name in self._listed() if step != self._good]
            if old and not os.path.exists(self._making):
                os.rename(old.pop(), self._making)
            for path in old:
                remove_tree(path)
            os.makedirs(self._making, mode=0o700, exist_ok=True)
            for name in os.listdir(self._making):  # another run may have had other files
                if not name.startswith(f"{self._ranks.host}.rank") or name.endswith(_OBJECTS):
                    os.unlink(f"{self._making}/{name}")
            return self._shortage()
        except OSError as error:
            return explain(error)

    def _shortage(self) -> str:
        """Why two copies do not fit into this host's memory, "" if they do."""
        parts = 1 if self._planner.complete else 1 + self._copies  # hosts are taken to have as much as this one
        needed = 2 * parts * (self._planner.bytes_on_storage + (1 << 20) * len(self._ranks.peers))
        return shortage(self._root, needed)

    def _open(self, device: Any) -> tuple[Buffer | None, str]:
        """This rank's memory in the folder to write to; and why there is none."""
        path = f"{self._making}/{self._ranks.host}.rank{self._ranks.rank}.safetensors"
        try:
            buffer = self._buffers.get(os.stat(path).st_ino) if os.path.exists(path) else None
            if buffer is None or buffer.size != self._layout.memory:
                buffer = Buffer(self._layout.memory, device, path)
            kept = dict([*self._buffers.items(), (os.stat(path).st_ino, buffer)][-2:])
            for old in self._buffers.values():
                if old not in kept.values():
                    old.close()
            self._buffers = kept
            return buffer, ""
        except OSError as error:
            return None, f"{path}: {error.strerror}"

    # --- beside the steps, in the writer's thread -------------------------------------------------

    def _publish(self, manifest: Manifest, buffer: Buffer | None, objects: Any, problem: str) -> None:
        """Makes a copy whole: checksums, objects, the other ranks' files, the neighbours' parts, a new name.

        Raises:
            SaveError, OSError: it was not made; where this rank has no buffer, because of `problem`.
        """
        ranks, making = self._ranks, self._making
        mine: Manifest | None = None
        try:
            if buffer is None:
                raise SaveError(problem)
            self._memory.wait()
            entries = self._seal(buffer, objects)
            if not ranks.leads:
                report(making, ranks, manifest.save, entries, "")
                return
            for rank in ranks.peers[1:]:
                entries += await_entries(making, ranks, manifest.save, rank)
                os.unlink(note_of(making, rank))
            mine = manifest.replace(files=tuple(entries))
        except BaseException as error:
            if not ranks.leads:
                report(making, ranks, manifest.save, [], explain(error) or type(error).__name__)
            raise
        finally:
            theirs = self._exchange(mine) if ranks.leads else []
        assert mine is not None
        for part in (*theirs, mine):
            manifests.write(making, part)
        os.rename(making, f"{self._root}/{self._naming.name_of(manifest.step)}")

    def _seal(self, buffer: Buffer, objects: Any) -> list[FileEntry]:
        """The entries of this rank's files, the objects written."""
        name = f"{self._ranks.host}.rank{self._ranks.rank}.safetensors"
        sums = tuple(checksums(buffer.view))
        return [FileEntry(name=name, size=buffer.size, block=BLOCK, crc32=sums), *write_files(self._making, [objects])]

    def _exchange(self, mine: Manifest | None) -> list[Manifest]:
        """Sends this host's part to those that follow, and takes the parts of those before; their manifests.

        Raises:
            SaveError: a part has not come whole.
        """
        if not self._copies:
            return []
        own, count, received = self._ranks.part, len(self._leaders), _Received()
        sources = [self._leaders[(own - distance) % count] for distance in range(1, self._copies + 1)]
        thread = threading.Thread(target=lambda: received.take(self._making, sources, self._ranks), name="trainshed-copies")
        thread.start()
        try:
            for distance in range(1, self._copies + 1):
                self._send(mine, self._leaders[(own + distance) % count])
        finally:
            thread.join()
        if received.problem:
            raise SaveError(received.problem)
        return received.manifests

    def _send(self, mine: Manifest | None, target: int) -> None:
        """Sends a part to a rank; at most half of the time, while nobody waits for it."""
        if mine is not None and mine.complete:
            mine = mine.replace(files=tuple(file for file in mine.files if file.name.endswith(_OBJECTS)))
        text = _NOTHING if mine is None else manifests.dump(mine)
        self._ranks.send(len(text).to_bytes(8, "little"), target)
        self._ranks.send(text, target)
        for file in mine.files if mine else ():
            peer_copy.send(f"{self._making}/{file.name}", file.size, [target], self._ranks, self._hurry.wait)

    # --- copies are used --------------------------------------------------------------------------

    def newest(self) -> Found | None:
        """The newest copy that is whole over all hosts, with this host's part here; says what it passes over. Collective."""
        if self._ranks.leads:
            remove_tree(self._making)
        known = self._known()
        everywhere = self._ranks.gather({key: {**parts} for key, parts in known.items()})
        for key in sorted({key for one in everywhere for key in one}, reverse=True):
            try:
                found = self._found(key, known.get(key, {}))
            except (Damaged, CheckpointError) as error:
                self._say(f"the copy in memory of step {key[0]} passed over: {error}")
                continue
            return found
        return None

    def settle(self, step: int) -> None:
        """The training goes on from the copy of a step, or without one where that is -1: all others are removed."""
        self._good = step
        self._remove(keep=step)

    def _known(self) -> dict[tuple[int, str], dict[int, Manifest]]:
        """The manifests here of this job's copies, by step and save, then by part."""
        known: dict[tuple[int, str], dict[int, Manifest]] = {}
        for step, name in self._listed():
            path = f"{self._root}/{name}"
            for file in os.listdir(path):
                try:
                    manifest = manifests.read(f"{path}/{file}") if file.endswith(manifests.SUFFIX) else None
                except Damaged as error:
                    self._say(f"the copy in memory of step {step} passed over: {error}", everywhere=True)
                    continue
                if manifest is not None and manifest.step == step and self._is_own(manifest):
                    known.setdefault((step, manifest.save), {})[manifest.part] = manifest
        return known

    def _is_own(self, manifest: Manifest) -> bool:
        """Whether a copy is of this job, on as many ranks and hosts."""
        owners = manifest.run.get(_OWNERS)
        same = isinstance(owners, list) and any(owner in self._owners for owner in owners)
        sizes = (manifest.world_size, manifest.parts) == (self._ranks.world_size, self._ranks.parts)
        return same and sizes and manifest.part < manifest.parts

    def _found(self, key: tuple[int, str], parts: dict[int, Manifest]) -> Found:
        """This host's part of a copy, every byte verified, what is lost here brought from other hosts. Collective.

        Raises:
            Damaged, CheckpointError: it is not whole over all hosts; on all ranks.
        """
        ranks, path = self._ranks, f"{self._root}/{self._naming.name_of(key[0])}"
        files = sorted({file.name: file for part in parts.values() for file in part.files}.items())
        share = ranks.peers.index(ranks.rank)
        good = {name for name, file in files[share :: len(ranks.peers)] if _verifies(path, file)}
        gathered = ranks.gather((good, parts))
        here = set[str]().union(*(gathered[rank][0] for rank in ranks.peers))
        whole = set[str]().union(*(names for names, _ in gathered))
        fullest: dict[int, Manifest] = {}  # the fullest manifest of each part
        for _, theirs in gathered:
            for part, manifest in theirs.items():
                if part not in fullest or len(manifest.files) > len(fullest[part].files):
                    fullest[part] = manifest
        mine, problems = self._needed(fullest, here, whole)
        problem = next(filter(None, ranks.gather(problems)), "")
        if problem or mine is None:
            raise Damaged(problem)
        if ranks.leads:
            os.makedirs(path, mode=0o700, exist_ok=True)
        own = [file for name, file in files if name in here]
        count, size = peer_copy.complete(path, own, ranks, {file.name for file in mine.files} if ranks.leads else set())
        if count:
            self._say(f"{in_words(size)} of step {key[0]} came from other hosts' memory", everywhere=True)
        ranks.highest([0.0])  # all files are here
        return Found(step=key[0], path=path, parts=(mine,))

    def _needed(self, fullest: dict[int, Manifest], here: set[str], whole: set[str]) -> tuple[Manifest | None, str]:
        """The manifest of what this host needs of a copy, and why that cannot be had.

        Args:
            fullest: the manifest of each part; here, whole: files that are whole on this host, and on any.
        """
        own = self._ranks.part
        if own not in fullest or fullest[own].ranks != self._ranks.peers:
            return None, f"no host has the part of ranks {', '.join(map(str, self._ranks.peers))}"
        mine = fullest[own]
        objects = [file for file in mine.files if file.name.endswith(_OBJECTS)]
        bases = sorted(fullest.values(), key=lambda part: part.part != own) if mine.complete else [mine]
        for held in (here, whole):
            for base in bases:
                files = [file for file in base.files if not file.name.endswith(_OBJECTS)]
                if len(files) == len(base.ranks) and all(file.name in held for file in files):
                    lost = next((file.name for file in objects if file.name not in whole), "")
                    return mine.replace(files=(*files, *objects)), lost and f"{lost} is damaged or lost"
        return mine, "its tensors are damaged or lost"

    def _listed(self) -> list[tuple[int, str]]:
        """Steps and names of the copies here, oldest first."""
        names = ((self._naming.step_of(name), name) for name in listed(self._root))
        return sorted((step, name) for step, name in names if step is not None)

    def _remove(self, keep: int) -> None:
        """On the leading rank: removes all copies but that of a step."""
        if self._ranks.leads:
            for step, name in self._listed():
                if step != keep:
                    remove_tree(f"{self._root}/{name}")
            if keep < 0:
                remove_tree(self._making)

    def close(self) -> None:
        """Waits for the copy that is being made. The copies stay: `train` removes them at its end."""
        if error := self._finished():
            self._say(f"the last copy in memory was not made: {explain(error)}", everywhere=True)
        self._ranks.close()


class _Received:
    """What has come from other hosts, taken in a thread of its own."""

    def __init__(self) -> None:
        self.manifests: list[Manifest] = []
        self.problem = ""

    def take(self, folder: str, sources: Iterable[int], ranks: Ranks) -> None:
        """Takes the parts of some ranks into a folder; all that they send, whatever becomes of it."""
        try:
            for source in sources:
                self._take_one(folder, source, ranks)
        except Exception as error:
            self.problem = self.problem or f"another host was lost: {str(error).splitlines()[0]}"

    def _take_one(self, folder: str, source: int, ranks: Ranks) -> None:
        text = ranks.receive(int.from_bytes(ranks.receive(8, source), "little"), source)
        if text == _NOTHING:
            self.problem = self.problem or f"rank {source} has not made its part"
            return
        manifest = manifests.parse(text, f"the manifest of rank {source}")
        for file in manifest.files:
            try:
                peer_copy.receive(folder, file, source, ranks)
            except (Damaged, OSError) as error:
                self.problem = self.problem or explain(error)
        self.manifests.append(manifest)


def _leaders(ranks: Ranks) -> list[int]:
    """The leading rank of each storage."""
    parts = ranks.gather((ranks.part, ranks.leads))
    return [rank for _, rank in sorted((part, rank) for rank, (part, leads) in enumerate(parts) if leads)]


def _verifies(path: str, file: FileEntry) -> bool:
    try:
        manifests.check_file(path, file)
    except (Damaged, OSError):
        return False
    return True
