"""Ends the script after a few optimizer steps, with a word on the memory they took; for jobs that are only a probe."""

from __future__ import annotations

import json
import os
import sys

from trainshed.base.files import write_atomic
from trainshed.contract.wire.batch_probe import probe_of

from . import memory
from .messages import rank, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def install(module: ModuleType) -> None:
    """Hooks into `torch.optim.optimizer`."""
    probe = probe_of(os.environ)
    if probe is None:
        return
    left = [probe.steps]

    def stepped(*_: object) -> None:
        left[0] -= 1
        if left[0] > 0:
            return
        limit = memory.limit_bytes() if memory.on_gpu() else min(probe.limit_bytes, memory.limit_bytes())
        answer = {"peak_bytes": memory.peak_bytes(), "limit_bytes": limit}
        write_atomic(f"{probe.folder}/{probe.host}.rank{rank()}.json", json.dumps(answer) + "\n")
        say(f"probe: {answer['peak_bytes'] / 2**30:.2f} of {limit / 2**30:.2f} GiB after {probe.steps} steps")
        _leave()

    module.register_optimizer_step_post_hook(stepped)


def _leave() -> None:
    """Ends the process as a whole: what comes after training is meant for a model that is done."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()  # nobody leaves in the middle of another's step
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
