"""What the scripts of the GPU benchmark share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def synchronize() -> None:
    """Waits until the GPU has done what it was given."""
    if CUDA:
        torch.cuda.synchronize()


def timed(action: Callable[[], object]) -> float:
    """Seconds that something takes, with what it gives the GPU to do."""
    synchronize()
    began = time.perf_counter()
    action()
    synchronize()
    return time.perf_counter() - began


def tell(**result: object) -> None:
    """Hands the part its result."""
    print("RESULT " + json.dumps(result), flush=True)
