"""transformers' Trainer without a changed line: it saves on notice and resumes from the newest whole checkpoint.

The Trainer still writes its `checkpoint-<step>` folders and loads them itself, with optimizer, schedule, random generators
and the position in the data. `guard` adds the rest.

`install` hooks into every Trainer of a job that asks for it (`checkpoint: auto`), `attach` into one, for scripts that
want to know how it ended.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from contextlib import contextmanager

from .guard import Guard, say, usual_copies, usual_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

_USED = (
    *("train", "_save_checkpoint", "_get_output_dir", "_load_from_checkpoint", "_maybe_log_save_evaluate"),
    *("add_callback", "remove_callback"),
)


def install(module: ModuleType) -> None:
    """Hooks into `transformers.trainer`; a second time does nothing.

    Raises:
        RuntimeError: this version lacks the methods that trainshed patches.
    """
    trainer = module.Trainer
    if hasattr(trainer, "_trainshed"):
        return
    missing = [name for name in _USED if not callable(getattr(trainer, name, None))]
    if missing:
        raise RuntimeError(f"this version's Trainer has no {missing[0]}")
    train, save, output_dir = trainer.train, trainer._save_checkpoint, trainer._get_output_dir
    after_step = trainer._maybe_log_save_evaluate

    @functools.wraps(train)
    def train_with_checkpoints(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        guard = self._trainshed
        if guard is None:
            why_not = _why_not(self, kwargs)
            if why_not:
                say(f"this Trainer is left alone: {why_not}")
                return train(self, resume_from_checkpoint, *args, **kwargs)
            folder = usual_folder(self.args.output_dir)
            guard = self._trainshed = TrainerGuard(self, module.TrainerCallback, folder, usual_copies(folder), leaves=True)
        self.add_callback(guard.callback)
        try:
            if resume_from_checkpoint in (None, True):
                resume_from_checkpoint = (guard.resumed or None) if guard.looked else guard.newest()
            elif resume_from_checkpoint != guard.resumed:
                say(f"the script resumes from {resume_from_checkpoint} by itself")
            if resume_from_checkpoint and guard.finished(resume_from_checkpoint):
                return guard.as_it_ended(resume_from_checkpoint)
            result = train(self, resume_from_checkpoint, *args, **kwargs)
            if guard.stopping:
                guard.answer(self.state.global_step)
        finally:
            guard.close()
        if guard.stopping and guard.leaves:
            raise SystemExit(0)  # what follows `train` in the script is meant for a finished model
        return result

    @functools.wraps(save)
    def save_and_seal(self: Any, *args: Any, **kwargs: Any) -> Any:
        guard = self._trainshed
        if guard is None or not guard.folder or guard.target != guard.folder:
            return save(self, *args, **kwargs)
        return guard.trainer_saves(lambda: save(self, *args, **kwargs))

    @functools.wraps(output_dir)
    def checkpoint_dir(self: Any, *args: Any, **kwargs: Any) -> str:
        guard = self._trainshed
        return guard.target if guard is not None and guard.folder else output_dir(self, *args, **kwargs)

    @functools.wraps(after_step)
    def log_save_evaluate_and_copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = after_step(self, *args, **kwargs)
        if self._trainshed is not None:
            self._trainshed.copy_of_trainer()
        return result

    trainer.train = train_with_checkpoints
    trainer._save_checkpoint = save_and_seal
    trainer._get_output_dir = checkpoint_dir
    trainer._maybe_log_save_evaluate = log_save_evaluate_and_copy
    trainer._trainshed = None


def attach(trainer: Any, folder: str | os.PathLike[str] | None, copy_to: str | None = None) -> TrainerGuard:
    """Has one Trainer save on notice, into a folder of the script's choice; call it on all ranks, before `train`.

    `train` then returns after a notice as it does at the end; `stopping` of the returned guard tells the two apart.

    Args:
        folder: where checkpoints lie; with None nothing is saved: the Trainer is only stopped.
        copy_to: URL of a storage that gets copies, "" for none; None takes what the job says.

    Raises:
        RuntimeError: this version of transformers lacks the methods that trainshed patches.
        CheckpointError: the folder cannot be written, or what is needed for the storage is not installed.
    """
    module = sys.modules["transformers.trainer"]
    install(module)
    path = "" if folder is None else os.path.abspath(folder)
    copies = usual_copies(path) if copy_to is None else copy_to
    trainer._trainshed = TrainerGuard(trainer, module.TrainerCallback, path, copies, leaves=False)
    return trainer._trainshed


def _why_not(trainer: Any, arguments: dict[str, Any]) -> str:
    """Why trainshed cannot resume from this Trainer's checkpoints, "" if it can."""
    if arguments.get("trial") is not None:
        return "it searches hyperparameters"
    if getattr(trainer.args, "save_only_model", False):
        return "save_only_model keeps no optimizer state to resume with"
    if getattr(trainer.args, "enable_jit_checkpoint", False):
        return "enable_jit_checkpoint already handles SIGTERM"
    return ""


class TrainerGuard(Guard):
    """The guard of one call of `Trainer.train`.

    leaves: whether the script ends after a notice, instead of continuing after `train`.
    """

    def __init__(self, trainer: Any, callback_class: type, folder: str, copy_to: str, leaves: bool) -> None:
        super().__init__(folder, copy_to)
        self.trainer = trainer
        self.leaves = leaves
        self._why = ""  # of the next save; "" for one that the Trainer itself wants

        class Callback(callback_class):  # type: ignore[misc]
            """Connects the Trainer with the guard; called after the Trainer's own callbacks and the script's."""

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
                guard.after_step(state.global_step, control)
                return control

            def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
                guard.after_epoch(state.global_step, control)
                return control

        guard = self
        self.callback = Callback()

    def finished(self, path: str) -> bool:
        """Returns whether a checkpoint is from the end of training; the Trainer would still train for one more step."""
        args, state = self.trainer.args, _trainer_state(path)
        step = int(state.get("global_step", 0))
        if args.max_steps > 0:
            return step >= args.max_steps
        return 0 < state.get("max_steps", 0) <= step and state.get("num_train_epochs", 0) >= args.num_train_epochs

    def as_it_ended(self, path: str) -> Any:
        """Returns what `train` returned at its end, with the model and the Trainer's state as they were then."""
        from transformers.trainer_callback import TrainerState
        from transformers.trainer_utils import TrainOutput

        trainer = self.trainer
        say(f"training had already finished, after step {self.saved_step}")
        trainer._load_from_checkpoint(path)
        trainer.state = TrainerState.load_from_json(f"{path}/trainer_state.json")
        if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
            trainer._load_best_model()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return TrainOutput(trainer.state.global_step, losses[-1] if losses else float("nan"), {})

    def after_step(self, step: int, control: Any) -> None:
        """Makes the Trainer save or stop if that is due."""
        reason = self.decide(step)
        if self.stopping:
            control.should_training_stop = True
            control.should_evaluate = False  # there may be no time for it
        if reason:
            self._why = "" if control.should_save else reason
            control.should_save = True

    def after_epoch(self, step: int, control: Any) -> None:
        """An epoch also ends because of a notice; then only what `after_step` has asked for is done."""
        if self.stopping:
            control.should_evaluate = False
            control.should_save = control.should_save and self.saved_step != step

    def trainer_saves(self, save: Any) -> Any:
        """Seals the Trainer's own save. The guard deletes old ones: the Trainer would do so before the new one is sealed."""
        state, reason = self.trainer.state, self._why
        self._why = ""
        with self._without_limit() as limit:
            return self.save(state.global_step, reason, save, limit, state.best_model_checkpoint or "")

    def copy_of_trainer(self) -> None:
        """Has the Trainer save into the hosts' memory, once what it logs of a step is in its state."""
        trainer = self.trainer
        if not getattr(trainer.args, "push_to_hub", False):  # it would push each of these saves
            with self._without_limit():
                self.copy(trainer.state.global_step, lambda: trainer._save_checkpoint(trainer.model, trial=None))

    @contextmanager
    def _without_limit(self) -> Iterator[int | None]:
        """Keeps the Trainer from deleting saves; gives its limit."""
        arguments = self.trainer.args
        limit, arguments.save_total_limit = arguments.save_total_limit, None
        try:
            yield limit
        finally:
            arguments.save_total_limit = limit

    def close(self) -> None:
        """Detaches from the Trainer; from then on SIGTERM ends the process again."""
        super().close()
        self.trainer.remove_callback(self.callback)
        self.trainer._trainshed = None


def _trainer_state(path: str) -> dict[str, Any]:
    """The Trainer's own state file of a checkpoint, {} if there is none."""
    try:
        with open(f"{path}/trainer_state.json", encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}
