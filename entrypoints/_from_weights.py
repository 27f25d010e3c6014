"""The way of programs that train a transformer of the channel model further, or a small one from scratch."""

from __future__ import annotations

import importlib
import os
import signal
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from _common import World, looked, previous_model, require_libraries


def start(program: str, hp: Namespace, training: str, data: Callable[[Namespace], Any], rates: dict[str, float]) -> None:
    """Trains or predicts, as the hyperparameters say. Raises Problem.

    program: its file. training: the module with its `train` and `predict`, which imports torch: after all else is checked.
    data: reads the channels. rates: the usual learning rate, for `pretrained` and from `scratch`.
    """
    require_libraries(program)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # ranks are as many as cores
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models come from folders
    if hp.predict:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nothing to save
        importlib.import_module(training).predict(hp)
        return
    source = previous_model(hp.previous_model)
    if hp.learning_rate is None:
        hp.learning_rate = rates["scratch" if source is None else "pretrained"]
    parts = data(hp)
    looked(hp)
    learn = importlib.import_module(training).train
    world = World.join(hp.device)
    learn(hp, None if source is None else str(source), parts, world)
    world.leave()
