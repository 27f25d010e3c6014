"""The Checkpointer: restores, decides at each step whether to save, and says when to stop."""

from __future__ import annotations

import os
import time

from trainshed.base import quick_json
from trainshed.base.process_age import process_began
from trainshed.base.voice import tell
from trainshed.contract.paths import Paths
from trainshed.contract.settings import COPY_TO_VARIABLE, EVERY_VARIABLE, MEMORY_VARIABLE, OPTIONS_VARIABLE
from trainshed.contract.wire import checkpoint_trouble
from trainshed.contract.wire.checkpoint_every import read_every
from trainshed.contract.wire.checkpoint_memory import read_memory

from . import folder as folders
from . import ranks as ranks_module
from . import storage_check as ground
from .agreement import Agreement
from .errors import CheckpointError
from .options import GIVEN, GivenOptions
from .policy import History, Policy
from .resume import Resumed, resume, resume_copy
from .save import CopyError, Retention, SaveError, explain
from .snapshots import Snapshots
from .state import all_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .memory_copies import MemoryCopies


class Checkpointer:
    """Checkpoints of one training loop. All ranks construct it, and call its methods, together.

        checkpointer = Checkpointer.for_job(model=model, optimizer=optimizer)
        step = checkpointer.restore()
        while step < steps:
            ...
            step += 1
            if checkpointer.step(step):
                break

    Args:
        folder: where checkpoints lie; with None nothing is saved, and `step` only says when to stop.
        copy_to: URL of another storage (`s3://bucket/run`, anything fsspec reaches): every checkpoint is uploaded there
            once it is durable here, and `restore` fetches the newest that verifies unless one here is as new.
        model: the module (wrapped by DDP, FSDP2, torch.compile, or plain); several as a sequence or mapping.
        optimizer: the optimizer(s) of its parameters.
        scheduler, scaler, data: anything with `state_dict` and `load_state_dict`; `data` keeps the position in the
            training data (`ResumableLoader`, torchdata's StatefulDataLoader, a sampler).
        extra: more such objects, by name.
        every_steps, every_seconds: when to save; with neither, as often as pays off by measurement (`policy`).
        every: `auto`, which wins over both; bounds and a given time between interruptions like
            `auto,least=30s,most=20m,between=8h`.
        keep_last: how many checkpoints stay; at least 2, since the newest may turn out damaged.
        keep_every: those at multiples of this many steps stay as well; 0 for none.
        keep_best: name of a metric passed to `step`; the best checkpoint by it stays as well.
        best_is: `min` or `max`.
        memory: `{"every_steps": 1, "copies": 1}`: the state is also kept in the hosts' memory. A failure then costs at most
            `every_steps` finished steps, as long as no more than `copies` hosts are lost.
        check_seconds: how often, at most, ranks of a job with several ask each other whether to save or stop.

    Raises:
        CheckpointError: the folder cannot be written.
        ValueError: an argument cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        *,
        copy_to: str = "",
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        data: Any = None,
        extra: Mapping[str, Any] | None = None,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        every: str = "",
        keep_last: int = 3,
        keep_every: int = 0,
        keep_best: str = "",
        best_is: str = "min",
        memory: Mapping[str, int] | None = None,
        check_seconds: float = 0.25,
    ) -> None:
        if keep_last < 2:
            raise ValueError("keep_last must be at least 2: the newest checkpoint may turn out to be damaged")
        if best_is not in ("min", "max"):
            raise ValueError(f"best_is must be 'min' or 'max', not {best_is!r}")
        self.folder = "" if folder is None else os.path.abspath(folder)
        self._intervals = (every_steps, every_seconds)
        self._every = read_every(every)
        self._policy = Policy(*self._intervals, time.monotonic(), History(), self._every)
        self._states = all_states(
            model, optimizer, {"scheduler": scheduler, "scaler": scaler, "data": data, **(extra or {})}
        )
        self._ranks = ranks_module.current()
        try:
            if self.folder:
                self._ranks.share_storage(self.folder)
        except OSError as error:
            raise CheckpointError(ground.unwritable(self.folder, error)) from error
        self._claim = ground.claim(self.folder if self._ranks.leads else "", tell)
        keep = Retention(last=keep_last, every=keep_every, metric=keep_best, mode=best_is)
        self._remote = None
        if copy_to and self._ranks.leads:
            from .remote import Remote

            self._remote = Remote(copy_to)
        self._snapshots = Snapshots(self.folder, self._ranks, self._states, keep, self._remote)
        self._agreement = Agreement(self._ranks, self._say, check_seconds)
        self._copies: MemoryCopies | None = None
        if memory is not None and self.folder:
            from .memory_copies import memory_of

            self._copies = memory_of(self.folder, self._states, read_memory(memory), self._say)
        self._pending = -1  # step of the snapshot being written
        self._stepped_at = time.monotonic()
        self.last_step = -1  # that of the newest checkpoint that is durable
        self.interrupted = False  # whether `step` has asked to stop
        self._failed_in_a_row = 0
        self.failures = 0  # checkpoints that could not be made

    @classmethod
    def for_job(cls, **arguments: Any) -> Checkpointer:
        """A Checkpointer for a script that trainshed runs.

        The folder is the job's (`SM_CHECKPOINT_DIR`, else /opt/ml/checkpoints). So is `copy_to` (the setting
        `trainshed_checkpoint_copy_to`), unless it is given. The settings `trainshed_checkpoint_every` and
        `trainshed_checkpoint_memory` win over the script.

        Args:
            arguments: those of the class, without `folder`.
        """
        folder = os.environ.get("SM_CHECKPOINT_DIR") or Paths.from_environment(os.environ).checkpoints
        if every := os.environ.get(EVERY_VARIABLE, ""):
            arguments["every"] = every
        if memory := os.environ.get(MEMORY_VARIABLE, ""):
            arguments["memory"] = quick_json.loads(memory)
        return cls(folder, **{"copy_to": os.environ.get(COPY_TO_VARIABLE, ""), **arguments})

    def restore(self) -> int:
        """Loads the newest checkpoint that is whole and returns its step; 0 if there is none. Collective.

        Every byte is verified first. A checkpoint that fails is passed over, with the reason on stderr.

        Raises:
            CheckpointError: the newest whole one does not fit this model, or the storage of `copy_to` cannot be read.
        """
        if not self.folder:
            return 0
        if self._ranks.leads and not self._claim.other:
            folders.sweep(self.folder)
        problem = ""
        if self._remote is not None:
            try:
                self._remote.fetch_newest(self.folder, self._say)
            except OSError as error:
                problem = f"{error.filename}: {error.strerror}"
        problem = next((text for text in self._ranks.gather(problem) if text), "")
        if problem:
            raise CheckpointError(f"checkpoints cannot be fetched from {problem}")
        given = GivenOptions(self._states) if os.environ.get(OPTIONS_VARIABLE) == GIVEN else None
        if self._copies is None:
            resumed = resume(self.folder, self._ranks, self._states)
        else:
            resumed = resume_copy(self._copies, self.folder, self._ranks, self._states)
        if given is not None and resumed.step:
            for line in given.put_back():
                self._say(f"as the script gives it: {line}")
        for line in resumed.notes:
            self._say(line)
        if len(steps := set(self._ranks.gather(resumed.step))) > 1:
            raise CheckpointError(f"ranks go on from different steps: {', '.join(map(str, sorted(steps)))}")
        if resumed.problem:
            raise CheckpointError(resumed.problem)
        self._begin(resumed)
        return resumed.step

    def _begin(self, resumed: Resumed) -> None:
        now = time.monotonic()
        self._policy = Policy(*self._intervals, now, resumed.history, self._every)
        self._stepped_at = now
        self.last_step = resumed.step

    def step(self, step: int, metrics: Mapping[str, float] | None = None) -> bool:
        """Saves when it is time; call it after each training step. Collective.

        Args:
            step: number of training steps done.
            metrics: values for `keep_best`.

        Returns:
            Whether to stop: a notice has come, and the state is saved.

        Raises:
            CheckpointError: the writing thread failed (a full disk is only reported, on stderr).
        """
        now = time.monotonic()
        self._policy.restart = self._policy.restart or time.time() - process_began()
        self._policy.stepped(now - self._stepped_at, self._snapshots.writer.busy)
        self._stepped_at = now
        if self._copies is not None and not self.interrupted:
            self._copies.after(step, self._policy.so_far(now).plain())
            self._stepped_at = time.monotonic()
        due = bool(self.folder) and self._policy.step_due(step)
        if self.folder:
            self._snapshots.prepare()
        if self.interrupted or not (due or self._agreement.due(step)):
            return self.interrupted
        self._consider(step, due, metrics or {})
        self._stepped_at = time.monotonic()
        return self.interrupted

    def save(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Saves now and waits until the checkpoint of this step is durable. Collective.

        Raises:
            CheckpointError: it was not made.
        """
        if not self.folder:
            raise CheckpointError("this Checkpointer was created without a folder to save to")
        failed = self._finish_pending()
        if not failed and not self._anywhere(self.last_step != step):
            return  # it has just been made, on all ranks
        self._save(step, metrics or {}, "asked for")
        if self._finish_pending():
            raise CheckpointError(f"the checkpoint of step {step} was not made; the reason is above")

    @property
    def busy(self) -> bool:
        """Tells whether a snapshot is being written."""
        return self._snapshots.writer.busy

    def wait(self) -> None:
        """Waits until the newest snapshot is durable or has failed; `last_step` and `failures` then say which."""
        self._snapshots.writer.wait()
        fatal = self._collect()
        if fatal is not None:
            raise CheckpointError(f"writing checkpoints failed: {fatal}") from fatal

    def close(self) -> None:
        """Waits for the checkpoint being written; from then on SIGTERM ends the process again. The last call."""
        self._snapshots.writer.wait()
        self._collect()
        if self._copies is not None:
            self._copies.close()
        self._agreement.close()
        self._claim.release()
        self._ranks.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _consider(self, step: int, due: bool, metrics: Mapping[str, float]) -> None:
        """Agrees with the other ranks on what to do after this step, and does it. Collective."""
        now = time.monotonic()
        fatal = self._collect()
        policy = self._policy
        agreed = self._agreement.agree(
            step,
            policy.step_seconds,
            [policy.due(now), self._snapshots.writer.busy, fatal is not None, policy.write],
        )
        late, busy, broken, write = agreed.highest
        if broken:
            raise CheckpointError(f"writing checkpoints failed: {fatal or 'on another rank'}") from fatal
        if agreed.stop:
            self._stop(step, metrics, hurried=bool(busy) and agreed.seconds_left < 1.5 * write)
        elif self.folder and (due or agreed.save or (late and not busy)):
            self._agreement.saving()
            self._finish_pending(check=bool(busy))
            self._save(step, metrics, "notice" if agreed.save else "interval")

    def _stop(self, step: int, metrics: Mapping[str, float], hurried: bool) -> None:
        """Makes the last checkpoint of this run; if `hurried`, only finishes the one being written. Collective."""
        failed = self._finish_pending()
        if self.folder and (failed or not hurried) and self._anywhere(self.last_step != step):
            self._save(step, metrics, "notice")
            failed = self._finish_pending()
        self.interrupted = True
        saved = self.last_step
        name = folders.STEPS.name_of(saved) if saved > 0 and not failed else ""
        self._agreement.answer(step, f"saved as {name}", f"{self.folder}/{name}" if name else "")

    def _save(self, step: int, metrics: Mapping[str, float], reason: str) -> None:
        """Takes the snapshot and starts writing it; no other one may be being written. Collective."""
        began = time.monotonic()
        self._pending = step
        self._snapshots.start(step, reason, self._policy.so_far(began).plain(), metrics)
        now = time.monotonic()
        self._policy.saved(now, now - began)
        if line := self._policy.choice(now):
            self._say(line)

    def _collect(self) -> BaseException | None:
        """Records how the last write ended, if it has; returns an error unless it is reported here, as a full disk is."""
        if self._pending < 0 or self._snapshots.writer.busy:
            return None
        step = self._pending
        self._pending = -1
        self._policy.written(self._snapshots.writer.seconds)
        error = self._snapshots.writer.take_error()
        if error is None or isinstance(error, CopyError):
            self.last_step = step
            if self._failed_in_a_row:
                self._failed_in_a_row = 0
                checkpoint_trouble.clear(os.environ)
            if error is not None:
                self._say(f"WARNING: the checkpoint of step {step} is here alone: {error}", everywhere=True)
            return None
        self.failures += 1
        self._failed_in_a_row += 1
        if isinstance(error, (OSError, SaveError)):
            reason = explain(error)
            self._say(f"WARNING: no checkpoint of step {step}: {reason}; training goes on", everywhere=True)
            checkpoint_trouble.note(os.environ, step=step, failures=self._failed_in_a_row, reason=reason)
            return None
        return error

    def _finish_pending(self, check: bool = True) -> bool:
        """Waits for the write in progress and returns whether it failed on any rank. Collective if `check`."""
        self._snapshots.writer.wait()
        failures = self.failures
        fatal = self._collect()
        if not check:
            return False
        failed, broken = self._ranks.highest([self.failures > failures, fatal is not None])
        if broken:
            raise CheckpointError(f"writing checkpoints failed: {fatal or 'on another rank'}") from fatal
        return bool(failed)

    def _anywhere(self, condition: bool) -> bool:
        """Whether a condition holds on any rank. Collective."""
        return bool(self._ranks.highest([condition])[0])

    def _say(self, line: str, everywhere: bool = False) -> None:
        if self._ranks.rank == 0 or everywhere:
            tell(line)
