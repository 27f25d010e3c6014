"""Cases for the test of the player: they end badly on purpose, and are in no table."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn

from hostile.table import Spec, rows, train


def dies(kit: Any) -> None:
    """One rank is gone, without a word."""
    if os.environ["RANK"] == "1":
        os._exit(3)


def waits(kit: Any) -> None:
    """One rank never ends."""
    while os.environ["RANK"] == "1":
        time.sleep(1)


def differs(kit: Any) -> None:
    """The ranks have another model than one process."""
    torch.manual_seed(1 + kit.alone)
    train(kit, Spec(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5)), rows()))


TRIALS = {f"trials/{case.__name__}": case for case in (dies, waits, differs)}
