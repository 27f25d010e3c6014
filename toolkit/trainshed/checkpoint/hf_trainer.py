"""transformers' Trainer without a changed line: saves on notice, resumes from the newest whole checkpoint.

On top of the Trainer's own machinery: it still writes `checkpoint-<step>` folders and still loads them, which brings
back optimizer, schedule, random generators and the place in the data. What is added: the folder is the job's checkpoint
folder; a manifest seals each save; a notice is agreed on by all ranks at a step boundary; and saves come often enough.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time

from trainshed.contract.notice import NOTICE_FILE, Answer, Notice, write_answer
from trainshed.contract.paths import Paths

from . import ranks as ranks_module
from . import sealed
from .interrupt import Interrupts
from .manifest import Damaged
from .policy import History, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

FIRST = 60.0  # seconds until the first save: the Trainer saves while the loop waits, and its cost is not known yet
_NAME = re.compile(r"checkpoint-(\d+)")
_USED = ("train", "_save_checkpoint", "_get_output_dir", "add_callback")


def install(module: ModuleType) -> None:
    """Hooks into `transformers.trainer`.

    Raises:
        RuntimeError: this version has not what we hook into.
    """
    trainer = module.Trainer
    missing = [name for name in _USED if not callable(getattr(trainer, name, None))]
    if missing:
        raise RuntimeError(f"this version's Trainer has no {missing[0]}")
    train, save, output_dir = trainer.train, trainer._save_checkpoint, trainer._get_output_dir

    @functools.wraps(train)
    def train_with_checkpoints(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        why_not = _why_not(self, kwargs)
        if why_not:
            _say(f"this Trainer is left alone: {why_not}")
            return train(self, resume_from_checkpoint, *args, **kwargs)
        guard = Guard(self, module.TrainerCallback)
        self._trainshed = guard
        try:
            if resume_from_checkpoint in (None, True):
                resume_from_checkpoint = guard.newest()
            else:
                _say(f"the script resumes from {resume_from_checkpoint} by itself")
            self.add_callback(guard.callback)
            result = train(self, resume_from_checkpoint, *args, **kwargs)
        finally:
            guard.close()
        if guard.stopping:
            guard.leave()
        return result

    @functools.wraps(save)
    def save_and_seal(self: Any, *args: Any, **kwargs: Any) -> Any:
        guard = getattr(self, "_trainshed", None)
        if guard is None:
            return save(self, *args, **kwargs)
        return guard.save(lambda: save(self, *args, **kwargs))

    @functools.wraps(output_dir)
    def checkpoint_dir(self: Any, *args: Any, **kwargs: Any) -> str:
        guard = getattr(self, "_trainshed", None)
        return guard.folder if guard is not None else output_dir(self, *args, **kwargs)

    trainer.train, trainer._save_checkpoint, trainer._get_output_dir = train_with_checkpoints, save_and_seal, checkpoint_dir


def _why_not(trainer: Any, arguments: dict[str, Any]) -> str:
    """Why this Trainer's checkpoints cannot be resumed from by us, "" if they can."""
    if arguments.get("trial") is not None:
        return "it searches hyperparameters"
    if getattr(trainer.args, "save_only_model", False):
        return "save_only_model keeps no optimizer state to resume with"
    if getattr(trainer.args, "enable_jit_checkpoint", False):
        return "enable_jit_checkpoint already handles SIGTERM"
    return ""


def _say(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"trainshed: checkpoint=auto: {line}", file=sys.stderr, flush=True)


class Guard:
    """What belongs to one call of `train`."""

    def __init__(self, trainer: Any, callback_class: type) -> None:
        self.trainer = trainer
        self.ranks = ranks_module.current()
        root = os.environ.get("SM_CHECKPOINT_DIR") or Paths.from_environment(os.environ).checkpoints
        own = os.path.abspath(trainer.args.output_dir)
        # A script that writes its checkpoints there anyway keeps its own folder.
        self.folder = own if own == root or own.startswith(f"{root}/") else root
        self.ranks.share_storage(self.folder)
        self.interrupts = Interrupts()
        self.policy = Policy(None, None, time.monotonic(), History())
        self.notice: Notice | None = None
        self.once = self.stopping = False
        self.saved_step = 0
        self._next_check = 0
        self._step_at = time.monotonic()

        class Callback(callback_class):  # type: ignore[misc]
            """The Trainer's way of being told after each step."""

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
                guard.after_step(state.global_step, control)
                return control

        guard = self
        self.callback = Callback()

    def newest(self) -> str | None:
        """The newest checkpoint that is whole on all hosts; says what was passed over."""
        try:
            found = sorted((int(m[1]), m[0]) for m in map(_NAME.fullmatch, os.listdir(self.folder)) if m)
        except OSError:
            found = []
        steps = set.intersection(*(set(steps) for steps in self.ranks.gather([step for step, _ in found])))
        for step in sorted(steps, reverse=True):
            path = f"{self.folder}/checkpoint-{step}"
            why, history = "", History()
            if self.ranks.leads:
                try:
                    history = History.of(sealed.check(path, self.ranks.host).run)
                except Damaged as error:
                    why = str(error)
            answers = self.ranks.gather((why, history))
            problems = [why for why, _ in answers if why]
            if not problems:
                before = answers[self.ranks.peers[0]][1]
                history = before.replace(interruptions=before.interruptions + 1)
                self.policy = Policy(None, None, time.monotonic(), history)
                self.saved_step = step
                _say(f"resuming from {path} (verified)")
                return path
            _say(f"checkpoint-{step} passed over: {problems[0]}")
        _say(f"saving to {self.folder} on notice and as often as pays off; nothing to resume from yet")
        return None

    def after_step(self, step: int, control: Any) -> None:
        """Agrees with the other ranks whether to save or stop; the Trainer then does so itself."""
        now = time.monotonic()
        self.policy.stepped(now - self._step_at, False)
        self._step_at = now
        if step < self._next_check:
            return
        notice = self.interrupts.look()
        while notice is not None:
            _say(f"notice: {notice.reason}")
            self.once = self.once or not notice.stop
            if notice.stop or self.notice is None:
                self.notice = notice
            notice = self.interrupts.look()
        late = now - self.policy.last >= FIRST if not self.policy.stall else self.policy.due(now)
        stop = self.notice is not None and self.notice.stop
        stop, once, late, seconds = self.ranks.highest([stop, self.once, late, self.policy.step_seconds])  # type: ignore[assignment]
        self._next_check = step + 1
        if self.ranks.world_size > 1 and seconds > 0:
            self._next_check = step + max(1, int(0.25 / seconds))
        if stop:
            self.stopping = True
            control.should_training_stop = control.should_save = True
        elif once or late:
            self.once = False
            control.should_save = True

    def save(self, save: Any) -> Any:
        """The Trainer's own save, then the seal."""
        began = time.monotonic()
        step = self.trainer.state.global_step
        path = f"{self.folder}/checkpoint-{step}"
        if self.ranks.leads:
            sealed.unseal(path)
        self.ranks.highest([0.0])  # nobody writes before the old seal is gone
        result = save()
        self.ranks.highest([0.0])  # everybody has written
        if self.ranks.leads:
            sealed.seal(path, step, self.ranks, self.policy.so_far(began).plain())
        self.ranks.highest([0.0])
        self.saved_step = step
        now = time.monotonic()
        self.policy.saved(now, now - began)
        self._step_at = now
        return result

    def leave(self) -> None:
        """Ends the script: what comes after `train` in it is meant for a model that is done."""
        step = self.trainer.state.global_step
        reasons = [reason for reason in self.ranks.gather(self.notice.reason if self.notice else "") if reason]
        reason = reasons[0] if reasons else "interrupted"
        path = f"{self.folder}/checkpoint-{step}" if self.saved_step == step else ""
        _say(f"stopping after step {step}: {reason}; " + (f"saved in {path}" if path else "not saved"))
        file = os.environ.get(NOTICE_FILE, "")
        if file:
            try:
                write_answer(file, Answer(rank=self.ranks.rank, step=step, checkpoint=path, reason=reason))
            except OSError as error:
                _say(f"the supervisor could not be told: {error.strerror}")
        raise SystemExit(0)

    def close(self) -> None:
        """SIGTERM ends the process again; the Trainer is as it was."""
        self.interrupts.close()
        self.trainer.remove_callback(self.callback)
        self.trainer._trainshed = None
