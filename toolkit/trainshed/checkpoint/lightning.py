"""Lightning's Trainer without a changed line: `fit` saves on notice and resumes from the newest whole checkpoint.

Lightning writes the checkpoint (`Trainer.save_checkpoint`) and loads it (`ckpt_path`). `guard` adds the rest; here is added
the state of the random generators, which Lightning leaves out. Lightning's handler for SIGTERM starts a collective from
inside the handler; it is switched off while `fit` runs.
"""

from __future__ import annotations

import functools
import inspect
import os

from trainshed.base.files import open_own

from .guard import Guard, say, usual_copies, usual_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

FILE = "lightning.ckpt"  # in checkpoint-<step>/; a folder where the strategy writes shards
_USED = ("fit", "save_checkpoint")


def install(module: ModuleType) -> None:
    """Hooks into `lightning.pytorch.trainer.trainer` (or `pytorch_lightning.trainer.trainer`).

    Raises:
        RuntimeError: this version lacks the methods that trainshed patches.
    """
    trainer = module.Trainer
    missing = [name for name in _USED if not callable(getattr(trainer, name, None))]
    if missing:
        raise RuntimeError(f"this version's Trainer has no {missing[0]}")
    fit = trainer.fit
    signature = inspect.signature(fit)
    if "ckpt_path" not in signature.parameters:
        raise RuntimeError("this version's Trainer.fit has no ckpt_path")

    @functools.wraps(fit)
    def fit_with_checkpoints(self: Any, *args: Any, **kwargs: Any) -> Any:
        why_not = _why_not(self)
        if why_not:
            say(f"this Trainer is left alone: {why_not}")
            return fit(self, *args, **kwargs)
        call = signature.bind(self, *args, **kwargs)
        self.strategy.setup_environment()  # `fit` does it too late for the ranks to agree on a checkpoint
        folder = usual_folder(self.default_root_dir)
        guard = FitGuard(self, _callback_class(module), folder, usual_copies(folder))
        connector = self._signal_connector
        try:
            if call.arguments.get("ckpt_path") is None:
                path = guard.newest()
                call.arguments["ckpt_path"] = path and f"{path}/{FILE}"
                if path and "weights_only" in signature.parameters and call.arguments.get("weights_only") is None:
                    # Callbacks may keep any objects. The seal tells damage, not forgery, so the file must be this user's:
                    # else Lightning is left to load what it loads of itself.
                    call.arguments["weights_only"] = False if _is_own(f"{path}/{FILE}") else None
            else:
                say(f"the script resumes from {call.arguments['ckpt_path']} by itself")
            connector._sigterm_notifier_fn = lambda *_: None
            self.callbacks.append(guard.callback)
            return fit(*call.args, **call.kwargs)
        finally:
            connector.__dict__.pop("_sigterm_notifier_fn", None)
            if guard.callback in self.callbacks:
                self.callbacks.remove(guard.callback)
            guard.close()

    trainer.fit = fit_with_checkpoints


def _is_own(path: str) -> bool:
    """Whether no other user of this machine could have written a checkpoint; says so where one could."""
    try:
        for name in os.listdir(path) if os.path.isdir(path) else [""]:
            open_own(os.path.join(path, name) if name else path).close()
    except PermissionError as error:
        say(f"{error.filename} could have been written by another user: objects of classes in it are not loaded")
        return False
    except OSError:  # Lightning says what is wrong with it
        pass
    return True


def _callback_class(module: ModuleType) -> type:
    from importlib import import_module

    return import_module(module.__name__.removesuffix(".trainer.trainer") + ".callbacks").Callback


def _why_not(trainer: Any) -> str:
    """Why this Trainer is left alone, "" if it is not."""
    if getattr(trainer, "fast_dev_run", False):
        return "fast_dev_run saves nothing"
    if trainer.world_size > 1 and int(os.environ.get("WORLD_SIZE") or 1) != trainer.world_size:
        return "it starts its ranks itself; let the job start them (processes per host)"
    return ""


class FitGuard(Guard):
    """The guard of one call of `Trainer.fit`."""

    def __init__(self, trainer: Any, callback_class: type, folder: str, copy_to: str) -> None:
        super().__init__(folder, copy_to)
        from .state import RandomState

        self.trainer = trainer
        self._random = RandomState()
        self._seen = -1

        class TrainshedCheckpoints(callback_class):  # type: ignore[misc]
            """Connects Lightning with the guard: called after each batch, and keeps the random generators."""

            generators: dict[int, Any] = {}  # noqa: RUF012 (by rank)
            restored = True

            def state_dict(self) -> dict[str, Any]:
                return {"random": self.generators}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.generators = state["random"]
                self.restored = False

            def on_train_batch_start(self, *_: Any) -> None:
                if not self.restored:  # only now: making iterators over the data has drawn numbers
                    self.restored = True
                    if len(self.generators) == guard.ranks.world_size:
                        guard._random.restore({}, self.generators[guard.ranks.rank])

            def on_train_batch_end(self, *_: Any) -> None:
                guard.after_batch()

        guard = self
        self.callback: Any = TrainshedCheckpoints()

    def after_batch(self) -> None:
        """Saves, and ends the script, if that is due; batches that only accumulate gradients do not count."""
        step = self.trainer.global_step
        if step == self._seen:
            return
        self._seen = step
        reason = self.decide(step)
        if reason:
            self.save(step, reason, lambda: self._save(step))
        else:
            self.copy(step, lambda: self._save(step))
        if self.stopping:
            self.answer(step)
            raise SystemExit(0)  # what follows `fit` in the script is meant for a finished model

    def _save(self, step: int) -> None:
        """Lightning's own save, with all ranks' generators."""
        self.callback.generators = dict(enumerate(self.ranks.gather(self._random.capture({}))))
        self.trainer.save_checkpoint(f"{self.path(step)}/{FILE}")
