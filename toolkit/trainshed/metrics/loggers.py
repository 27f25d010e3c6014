"""Hands on what the trainers of transformers and Lightning log, to the last digit, for jobs with `metrics: loggers`.

`install` hooks into every Trainer: a callback hands on what it logs, with its step and epoch. Nothing has to be printed.
"""

from __future__ import annotations

import functools
import math

from trainshed.base.voice import tell

from . import log
from .points import LONGEST_NAME, PLACES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any


def install(module: ModuleType) -> None:
    """Hooks into `transformers.trainer`, `lightning.pytorch.trainer.trainer` or `pytorch_lightning.trainer.trainer`.

    A second time does nothing.
    """
    trainer = module.Trainer
    if "_trainshed_logs" in vars(trainer):
        return
    trainer._trainshed_logs = True
    made = trainer.__init__
    add = _add_to_transformers if module.__name__.startswith("transformers.") else _add_to_lightning

    @functools.wraps(made)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        try:
            add(self, module)
        except AttributeError as error:  # another version
            tell(f"metrics=loggers: this Trainer's values are not logged: {error}")

    trainer.__init__ = make


def _add_to_transformers(trainer: Any, module: ModuleType) -> None:
    class Logs(module.TrainerCallback):  # type: ignore[name-defined, misc]
        """Hands on what a Trainer logs; on its first rank, where the numbers are those of all."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
            if state.is_world_process_zero and logs:
                _hand_on(logs, state.global_step, state.epoch)

    trainer.add_callback(Logs())


def _add_to_lightning(trainer: Any, module: ModuleType) -> None:
    connector = trainer._logger_connector
    pass_on = connector.log_metrics  # every logger gets its values from here; it is called without any, too

    @functools.wraps(pass_on)
    def log_metrics(metrics: Mapping[str, Any], step: int | None = None) -> None:
        if trainer.global_rank == 0 and metrics:
            numbers = {name: float(value) for name, value in metrics.items()}
            own = numbers.get("step", trainer.fit_loop.epoch_loop._batches_that_stepped)  # as Lightning does
            _hand_on(numbers, int(own) if step is None else step, trainer.current_epoch)
        pass_on(metrics, step)

    connector.log_metrics = log_metrics


def _hand_on(values: Mapping[str, Any], step: int, epoch: float | None) -> None:
    numbers = {
        name: value
        for name, value in values.items()
        if isinstance(name, str)
        and 0 < len(name) <= LONGEST_NAME
        and "\n" not in name
        and name.lower() not in PLACES
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
    }
    if numbers:
        log(numbers, step=int(step), epoch=epoch if epoch is None or math.isfinite(epoch) else None)
