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
        forget_peak()
        try:
            step(batch)
            step(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            error.__traceback__ = None  # it holds what the step had made
            forget_peak()
            return None
        return peak_bytes()

    found = largest_batch(peak_of, limit_bytes, start=start, step=multiple_of, most=most, tries=tries, reserve=reserve)
    forget_peak()
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
        limit = limit_bytes() if on_gpu() else min(probe.limit_bytes, limit_bytes())
        answer = {"peak_bytes": peak_bytes(), "limit_bytes": limit}
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


_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def on_gpu() -> bool:
    """Returns whether this process trains on a GPU of torch's."""
    import torch

    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def forget_peak() -> None:
    """Begins to measure anew."""
    import gc

    gc.collect()
    if on_gpu():
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak of the resident set is now what it is (proc(5))
    except OSError:
        pass


def peak_bytes() -> int:
    """The most that was held since `forget_peak`, or since the start."""
    if on_gpu():
        import torch

        return int(torch.cuda.max_memory_allocated())
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        found = next((line.split()[1] for line in file if line.startswith("VmHWM:")), "0")
    return int(found) * 1024


def limit_bytes() -> int:
    """All that this process may hold: the GPU's memory, or the least of the machine's, the cgroup's and the process's."""
    if on_gpu():
        import torch

        return int(torch.cuda.mem_get_info()[1])
    import resource

    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    for path in _LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        limits.append(int(text) if text.isdigit() else -1)
    return min(limit for limit in limits if limit > 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether torch raised this because memory is short; its CPU allocator has no special type for that."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)
