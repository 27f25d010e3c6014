"""Saves of a library's trainer in the hosts' memory, which outlive the ranks: what `memory_copies` is for a Checkpointer.

The library saves into a folder in /dev/shm while the loop waits, as it does on disk. Then each host gets from the others
what it lacks, since libraries look for all of a save when they load it. So all hosts but one can be lost.
"""

from __future__ import annotations

from trainshed.base.files import listed
from trainshed.base.record import Record

from . import foreign_manifest as sealed
from . import peer_copy
from .errors import CheckpointError
from .folder import remove_tree
from .foreign_manifest import CHECKPOINTS
from .manifest import Damaged, FileEntry, Manifest
from .memory_copies import memory_ranks, shortage
from .policy import History

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainshed.contract.wire.checkpoint_memory import Memory

    from .ranks import Ranks


class Copy(Record):
    """A save in memory that is whole on all hosts; `history` is what it hands to the next run."""

    step: int
    path: str
    history: History


def memory_saves(folder: str, wanted: Memory, say: Callable[..., None]) -> MemorySaves | None:
    """The saves in memory of one trainer; None where they cannot be kept, with a line that says why. Collective.

    Args:
        folder: where it saves otherwise.
        say: prints a line; `everywhere=True` on any rank.
    """
    held = memory_ranks(say)
    return None if held is None else MemorySaves(held[0], held[1], folder, wanted, say)


class MemorySaves:
    """The newest two saves on this host. All ranks construct it, and call its methods, together.

    root: the folder for the library's `checkpoint-<step>`.
    """

    def __init__(self, root: str, ranks: Ranks, folder: str, wanted: Memory, say: Callable[..., None]) -> None:
        self.root = root
        self._ranks = ranks
        self._folder = folder
        self._every = wanted.every_steps
        self._say = say
        self._size = 0
        self._last = -1
        self._off = False

    def due(self, step: int) -> bool:
        """Tells whether a save is due after a step; the answer is the same on all ranks."""
        return not self._off and step % self._every == 0 and step != self._last

    def save(self, step: int, save: Callable[[], object], run: dict[str, Any]) -> None:
        """Has the library save into the root, seals that, and gives it to the other hosts. Collective.

        Args:
            run: the manifest's `run`.
        """
        path, self._last = f"{self.root}/{CHECKPOINTS.name_of(step)}", step
        if self._ranks.leads:
            remove_tree(path)
        if not self._settled(shortage(self.root, self._size) if self._ranks.leads else ""):
            return
        problem = ""
        try:
            save()
        except (OSError, RuntimeError):  # torch hides a full /dev/shm in a RuntimeError
            if not (problem := shortage(self.root, max(self._size, 64 << 20))):
                raise
        if not self._settled(problem):
            return
        files, problem = self._sealed(path, step, run)
        if not self._settled(problem):
            return
        if self._ranks.parts > 1:
            try:
                peer_copy.complete(path, files, self._ranks)
            except (Damaged, CheckpointError) as error:  # on all ranks
                problem = str(error)
            else:
                _, problem = self._sealed(path, step, run)
        if self._settled(problem) and self._ranks.leads:
            for older in self._steps()[2:]:
                remove_tree(f"{self.root}/{CHECKPOINTS.name_of(older)}")

    def _sealed(self, path: str, step: int, run: dict[str, Any]) -> tuple[tuple[FileEntry, ...], str]:
        """Seals the save here; its files, and why it cannot. The folder is the reason: another trainer has another one."""
        if not self._ranks.leads:
            return (), ""
        try:
            sealed.seal(path, step, self._ranks, run, self._folder)
            manifest = sealed.open_sealed(path, self._ranks.host)
        except (OSError, Damaged) as error:
            return (), str(error)
        self._size = manifest.size
        return manifest.files, ""

    def _settled(self, problem: str) -> bool:
        """Whether no rank has a problem; with one there are no more saves in memory, which the user is told. Collective."""
        if not self._ranks.highest([bool(problem)])[0]:
            return True
        self._say(f"WARNING: no more copies in memory: {next(filter(None, self._ranks.gather(problem)))}")
        self._off = True
        if self._ranks.leads:
            for step in self._steps():
                remove_tree(f"{self.root}/{CHECKPOINTS.name_of(step)}")
        return False

    def newest(self) -> Copy | None:
        """The newest save that a host has whole, brought to all others; says what it passes over. Collective."""
        ranks = self._ranks
        for step in sorted(set[int]().union(*ranks.gather(set(self._steps()))), reverse=True):
            path = f"{self.root}/{CHECKPOINTS.name_of(step)}"
            why, manifest = self._whole(path) if ranks.leads else ("", None)
            answers = ranks.gather((why, manifest and History.of(manifest.run)))
            try:
                history = next((history for _, history in answers if history is not None), None)
                if history is None:
                    raise Damaged(next(why for why, _ in answers if why))
                if ranks.parts > 1:
                    peer_copy.complete(path, manifest.files if manifest else (), ranks)
            except (Damaged, CheckpointError) as error:
                self._say(f"the copy in memory of step {step} passed over: {error}")
                continue
            return Copy(step=step, path=path, history=history)
        return None

    def _whole(self, path: str) -> tuple[str, Manifest | None]:
        """The manifest of a save here, every byte verified, or why there is none."""
        try:
            manifest = sealed.check(path, self._ranks.host)
        except Damaged as error:
            return str(error), None
        if manifest.reason != self._folder or manifest.world_size != self._ranks.world_size:
            return "it is another training's", None
        return "", manifest

    def _steps(self) -> list[int]:
        """The steps of the saves here, newest first."""
        return sorted((step for step in map(CHECKPOINTS.step_of, listed(self.root)) if step is not None), reverse=True)

    def close(self) -> None:
        """The last call. The saves stay: `train` removes them at its end."""
        self._ranks.close()
