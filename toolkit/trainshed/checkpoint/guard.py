"""Parts that the hooks into other libraries' training loops share: the library saves, trainshed seals.

The library saves into a folder `checkpoint-<step>` by its own means while the loop waits. A Guard adds:

- when to save, and a notice that all ranks agree on at a step boundary (`agreement`);
- the manifest that seals a save (`sealed`), and the newest sealed save to resume from;
- deletion of old saves, only once a newer one is sealed;
- copies on another storage, if the job wants them (`copies`);
- saves in the hosts' memory, if the job wants them (`memory_saves`);
- a full disk costs the save and not the training.
"""

from __future__ import annotations

import errno
import os
import time
from functools import partial

from trainshed.base import quick_json
from trainshed.base.process_age import process_began
from trainshed.base.voice import tell
from trainshed.contract.paths import Paths
from trainshed.contract.settings import COPY_TO_VARIABLE, EVERY_VARIABLE, MEMORY_VARIABLE
from trainshed.contract.wire import checkpoint_trouble
from trainshed.contract.wire.checkpoint_every import read_every
from trainshed.contract.wire.checkpoint_memory import read_memory

from . import folder as folders
from . import foreign_manifest as sealed
from . import peer_copy as handover
from . import ranks as ranks_module
from . import storage_check as ground
from .agreement import Agreement
from .errors import CheckpointError
from .foreign_manifest import CHECKPOINTS
from .manifest import Damaged, Manifest
from .policy import History, Policy
from .writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .copies import Copies
    from .manifest import FileEntry
    from .memory_saves import MemorySaves
    from .ranks import Ranks

FIRST = 60.0  # seconds until the first save: the library saves while the loop waits, and its cost is not known yet
KEEP = 2  # sealed saves that stay at least: the newest may turn out damaged
SCARCE = 64 << 20  # bytes; with less free space, a save that failed is blamed on the disk
OURS = ("notice", "interval")  # reasons of saves that trainshed has asked for, not the script


def usual_folder(own: str) -> str:
    """The job's checkpoint folder, or `own` if the script writes its checkpoints to a folder in there."""
    root = _root()
    own = os.path.abspath(own)
    return own if own == root or own.startswith(f"{root}/") else root


def usual_copies(folder: str) -> str:
    """URL for the copies of a checkpoint folder, "" for none; a subfolder of the job's folder gets a subfolder there."""
    url, root = os.environ.get(COPY_TO_VARIABLE, ""), _root()
    below = folder.removeprefix(f"{root}/")
    return f"{url.rstrip('/')}/{below}" if url and below != folder else url


def _root() -> str:
    return os.environ.get("SM_CHECKPOINT_DIR") or Paths.from_environment(os.environ).checkpoints


def say(line: str, everywhere: bool = False) -> None:
    """Prints one line on stderr: on the first rank only, or with `everywhere` on each rank that calls it."""
    if everywhere or os.environ.get("RANK", "0") == "0":
        tell(f"checkpoint=auto: {line}")


class Guard:
    """The state of one run of a training loop; all ranks construct it and call its methods together.

    folder: where checkpoints lie, "" for none.
    copy_to: URL of a storage that gets copies, "" for none; a copy is made beside the training, one at a time.
    ranks: for a library with a communication of its own; torch.distributed's, or this process alone, where it is None.
    looked: whether `newest` was called.
    resumed: path of the checkpoint that `newest` returned, "" for none.
    stopping: whether training is to end because of a notice.
    """

    def __init__(self, folder: str, copy_to: str = "", ranks: Ranks | None = None) -> None:
        self.folder = folder
        self.ranks = ranks or ranks_module.current()
        try:
            if folder:
                self.ranks.share_storage(folder)
        except OSError as error:
            raise CheckpointError(ground.unwritable(folder, error)) from error
        self._claim = ground.claim(folder if self.ranks.leads else "", partial(say, everywhere=True))
        self._failed_in_a_row = 0
        self._copies: Copies | None = None
        self._copying = Writer()
        self._copied_step = 0  # of the copy made last, or being made
        if folder and copy_to and self.ranks.leads:
            from .copies import Copies

            self._copies = Copies(copy_to, self.ranks)
        self._memory: MemorySaves | None = None
        self.target = folder  # of the library's save: the folder, or a place in memory
        if folder and (memory := os.environ.get(MEMORY_VARIABLE, "")):
            from .memory_saves import memory_saves

            self._memory = memory_saves(folder, read_memory(quick_json.loads(memory)), say)
        self._agreement = Agreement(self.ranks, say)
        self._every = read_every(os.environ.get(EVERY_VARIABLE, ""))
        self.policy = Policy(None, None, time.monotonic(), History(), self._every)
        self.stopping = False
        self.looked = False
        self.resumed = ""
        self.saved_step = 0
        self._step_at = time.monotonic()

    def path(self, step: int) -> str:
        """The folder of a step's save."""
        return f"{self.target}/{CHECKPOINTS.name_of(step)}"

    def newest(self) -> str | None:
        """Path of the newest checkpoint that is whole on all hosts, None without one; says what it passed over. Collective.

        A host that has no whole one here fetches it from the copies. Hosts with disks of their own hand each other the files
        that a library has written on one of them.

        Raises:
            CheckpointError: the storage of the copies cannot be read, or there is no room for what another host has.
        """
        self.looked = True
        if not self.folder:
            return None
        copy = self._memory.newest() if self._memory else None
        path = self._newest_on_disk(copy.step if copy else -1)
        if path is None and copy is not None:
            self._goes_on(copy.step, copy.path, copy.history)
            path = copy.path
        if path is None:
            say(f"saving to {self.folder} on notice and at measured intervals; nothing to resume from yet")
        return path

    def _goes_on(self, step: int, path: str, before: History) -> None:
        history = before.replace(interruptions=before.interruptions + 1)
        self.policy = Policy(None, None, time.monotonic(), history, self._every)
        self.saved_step = step
        self.resumed = path
        say(f"resuming from {path} (verified)")

    def _newest_on_disk(self, above: int) -> str | None:
        """`newest` of the checkpoints after a step."""
        here: set[int] = set()
        there: set[int] = set()
        trouble = ""
        if self.ranks.leads:
            if not self._claim.other:
                folders.sweep(self.folder)
            here = {step for step in map(CHECKPOINTS.step_of, os.listdir(self.folder)) if step is not None}
            try:
                there = set(self._copies.steps()) if self._copies else set()
            except OSError as error:
                trouble = f"{error.filename}: {error.strerror}"
        everywhere = self.ranks.gather((self.ranks.leads, here | there, trouble))
        _refuse(trouble for _, _, trouble in everywhere)
        for step in sorted(set.intersection(*(steps for leads, steps, _ in everywhere if leads)), reverse=True):
            if step <= above:
                break
            why, history = "", History()
            files: tuple[FileEntry, ...] = ()
            if self.ranks.leads:
                try:
                    manifest = self._whole(step, step in here, step in there)
                    history, files = History.of(manifest.run), manifest.files
                except Damaged as error:
                    why = str(error)
                except OSError as error:
                    trouble = f"{error.filename}: {error.strerror}"
            answers = self.ranks.gather((why, history, trouble))
            _refuse(trouble for _, _, trouble in answers)
            problems = [why for why, _, _ in answers if why] or self._completed(step, files)
            if not problems:
                self._goes_on(step, self.path(step), answers[self.ranks.peers[0]][1])
                return self.resumed
            say(f"checkpoint-{step} passed over: {problems[0]}")
        return None

    def _whole(self, step: int, here: bool, there: bool) -> Manifest:
        """Verifies a step's checkpoint here, or fetches it; returns its manifest.

        Raises:
            Damaged: the checkpoint is not whole, here or on the storage.
            OSError: the storage of the copies cannot be read.
        """
        if here:
            try:
                return sealed.check(self.path(step), self.ranks.host)
            except Damaged as error:
                if not there:
                    raise
                say(f"checkpoint-{step} is not whole here, fetching its copy: {error}", everywhere=True)
        assert self._copies is not None
        path = self._copies.fetch(self.folder, step)
        say(f"fetched {self._copies.url}/checkpoint-{step}", everywhere=True)
        return sealed.open_sealed(path, self.ranks.host)

    def _completed(self, step: int, files: tuple[FileEntry, ...]) -> list[str]:
        """Has hosts with disks of their own give each other what they alone have; gives why that failed. Collective.

        Raises:
            CheckpointError: there is no room for it here.
        """
        if self.ranks.parts == 1:
            return []
        try:
            count, size = handover.complete(self.path(step), files, self.ranks)
        except Damaged as error:
            return [str(error)]
        if count:
            say(f"checkpoint-{step}: {count} files ({size / 1e6:.1f} MB) came from other hosts", everywhere=True)
        return []

    def decide(self, step: int) -> str:
        """Decides after a step, on all ranks alike. Collective.

        Returns:
            Why to save now: `notice` or `interval`; "" not to save. If it set `stopping`, training ends at this step.
        """
        now = time.monotonic()
        self.policy.restart = self.policy.restart or time.time() - process_began()
        self.policy.stepped(now - self._step_at, False)
        self._step_at = now
        if not self._agreement.due(step):
            return ""
        late = now - self.policy.last >= FIRST if not self.policy.stall else self.policy.due(now)
        agreed = self._agreement.agree(step, self.policy.step_seconds, [late, self._copying.busy])
        late_anywhere, busy = agreed.highest
        self.stopping = agreed.stop
        # A save that is only due by the clock would wait for the copy of the last one.
        if not self.folder or not (agreed.stop or agreed.save or (late_anywhere and not busy)):
            return ""
        self._agreement.saving()
        return "notice" if agreed.stop or agreed.save else "interval"

    def save(self, step: int, reason: str, save: Callable[[], Any], limit: int | None = None, best: str = "") -> Any:
        """Calls the library's own save, into `checkpoint-<step>`, then seals it. Collective.

        Args:
            reason: what `decide` said; "" for a save that the script itself wants.
            limit: how many saves the script wants to keep; with None, only those that we asked for are ever deleted.
            best: path of one that stays in any case.

        Returns:
            What `save` returned; None if the disk is full.
        """
        self._finish_copy()
        began = time.monotonic()
        path = self.path(step)
        if self.ranks.leads:
            sealed.unseal(path)
            folders.remove_tree(path)  # what an earlier run has left, or another host has handed over, is not of this save
        self.ranks.highest([0.0])  # no rank writes before the old seal is gone
        problem, result = "", None
        try:
            result = save()
        except Exception as error:
            problem = _disk_problem(error, self.folder)
            if not problem:
                raise
        problem = self._agreed(problem)  # all ranks have written
        if self.ranks.leads and not problem:
            try:
                sealed.seal(path, step, self.ranks, self.policy.so_far(began).plain(), reason)
            except OSError as error:
                problem = error.strerror or str(error)
        problem = self._agreed(problem)
        if problem:
            say(f"WARNING: no checkpoint of step {step}: {problem}; training goes on")
            self._failed_in_a_row += 1
            checkpoint_trouble.note(os.environ, step=step, failures=self._failed_in_a_row, reason=problem)
            if self.ranks.leads:
                folders.remove_tree(path)
        else:
            self.saved_step = step
            if self._failed_in_a_row:
                self._failed_in_a_row = 0
                checkpoint_trouble.clear(os.environ)
            if self.ranks.leads:
                self._prune(limit, best)
                self._copy(step, limit, best)
        now = time.monotonic()
        self.policy.saved(now, now - began)
        if line := self.policy.choice(now):
            say(line)
        self._step_at = now
        return result

    def copy(self, step: int, save: Callable[[], Any]) -> None:
        """Has the library save into the hosts' memory after a step, where the job wants that and it is due. Collective.

        Args:
            save: the library's own save, into `path(step)`.
        """
        if self._memory is None or self.stopping or not self._memory.due(step):
            return
        self.target = self._memory.root
        try:
            self._memory.save(step, save, self.policy.so_far(time.monotonic()).plain())
        finally:
            self.target = self.folder
            self._step_at = time.monotonic()

    def _agreed(self, problem: str) -> str:
        """The first problem of any rank, "" if there is none; exchanges texts only if there is one. Collective."""
        if not self.ranks.highest([bool(problem)])[0]:
            return ""
        return next(text for text in self.ranks.gather(problem) if text)

    def _prune(self, limit: int | None, best: str) -> None:
        """Deletes old saves: beyond the script's own limit, or, without a limit, those that trainshed asked for."""
        whole: list[tuple[int, str, str]] = []
        for name in os.listdir(self.folder):
            step, path = CHECKPOINTS.step_of(name), f"{self.folder}/{name}"
            if step is not None:
                try:
                    whole.append((step, path, sealed.open_sealed(path).reason))
                except Damaged:
                    pass
        keep = max(KEEP, limit or 0)
        for _, path, reason in sorted(whole, reverse=True)[keep:]:
            if (limit or reason in OURS) and not (best and os.path.abspath(best) == path):
                sealed.unseal(path)
                folders.remove_tree(path)

    def _copy(self, step: int, limit: int | None, best: str) -> None:
        """Starts to copy what has just been sealed, beside the training."""
        copies, path = self._copies, self.path(step)
        if copies is None:
            return

        def make() -> None:
            copies.push(path)
            if self.ranks.part == 0:
                copies.prune(max(KEEP, limit or 0), () if limit else OURS, os.path.basename(best))

        self._copied_step = step
        self._copying.start(make)

    def _finish_copy(self) -> None:
        """Waits for the copy that is being made; prints a warning if it failed."""
        self._copying.wait()
        error = self._copying.take_error()
        if error is not None:
            why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            say(f"WARNING: the checkpoint of step {self._copied_step} is here alone: {why}", everywhere=True)

    def answer(self, step: int) -> None:
        """Tells the user and the supervisor that training stops after `step`. Collective."""
        self._finish_copy()
        path = self.path(step) if self.folder and self.saved_step == step else ""
        self._agreement.answer(step, f"saved in {path}", path)

    def close(self) -> None:
        """Waits for the copy that is being made; from then on SIGTERM ends the process again."""
        self._finish_copy()
        self._agreement.close()
        self._claim.release()
        if self._memory is not None:
            self._memory.close()
        self.ranks.close()


def _refuse(troubles: Iterable[str]) -> None:
    """Raises CheckpointError for the first trouble: a fresh start would overwrite checkpoints that could not be read."""
    trouble = next((text for text in troubles if text), "")
    if trouble:
        raise CheckpointError(f"checkpoints cannot be fetched from {trouble}")


def _disk_problem(error: Exception, folder: str) -> str:
    """A message if a save failed because the disk is full, else "" (torch and safetensors hide the error number)."""
    if isinstance(error, OSError) and error.errno not in (None, errno.ENOSPC, errno.EDQUOT):
        return ""
    try:
        status = os.statvfs(folder)
    except OSError:
        return ""
    if isinstance(error, OSError) and error.errno in ground.FULL:
        return f"{folder}: {ground.full(error, folder)}"
    if "No space left" in str(error) or status.f_bavail * status.f_frsize < SCARCE:
        return f"the disk of {folder} is full"
    return ""
