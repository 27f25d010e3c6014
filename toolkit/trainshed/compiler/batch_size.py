"""The largest batch that fits: found in the training script itself, or by jobs of which each is one try.

`install` serves the second way (`trainshed run --find-batch-size`): it ends such a job after a few optimizer steps, and
reports the memory that they took.
"""

from __future__ import annotations

import json
import os
import sys

from trainshed.base.files import write_atomic
from trainshed.contract.wire.batch_search import BatchSize, largest_batch, probe_of, scaled_learning_rate

from . import memory
from .messages import rank, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["BatchSize", "find_batch_size", "install", "scaled_learning_rate"]


def find_batch_size(
    step: Callable[[int], object],
    *,
    start: int = 1,
    multiple_of: int = 1,
    most: int = 1 << 20,
    tries: int = 8,
    reserve: float = 0.1,
) -> BatchSize:
    """The largest batch that `step` can train with, in a handful of tries.

    Call it before the model is wrapped for several ranks: where ranks differ, the least of them counts, and a rank that runs
    out of memory in the middle of an exchange would leave the others waiting. The optimizer's state counts too: let `step`
    make an optimizer step.

    Args:
        step: one whole training step on a batch of the given size: forward, backward, optimizer. Called twice a try.
        start: the first batch to try.
        multiple_of: batches are multiples of this.
        most: the largest batch of interest.
        tries: how many sizes to try at most.
        reserve: part of the memory that stays free, 0 to 0.9.

    Raises:
        ValueError: a number is out of its range.
        Exception: whatever `step` raises, unless memory was short.
    """
    if min(start, multiple_of, most) < 1 or tries < 2 or not 0 <= reserve <= 0.9:
        raise ValueError("start, multiple_of and most must be at least 1, tries at least 2, reserve from 0 to 0.9")

    def peak_of(batch: int) -> int | None:
        memory.forget_peak()
        try:
            step(batch)
            step(batch)
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            error.__traceback__ = None  # it holds what the step had made
            memory.forget_peak()
            return None
        return memory.peak_bytes()

    found = largest_batch(
        peak_of, memory.limit_bytes, start=start, step=multiple_of, most=most, tries=tries, reserve=reserve
    )
    memory.forget_peak()
    return found.replace(batch=_least(found.batch))


def _least(batch: int) -> int:
    """The least of all ranks."""
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return batch
    held: list[int | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(held, batch)
    return min(value for value in held if value is not None)


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
        torch.distributed.barrier()  # a rank must not end during another's step
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
