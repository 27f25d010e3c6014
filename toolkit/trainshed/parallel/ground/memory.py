"""How much memory this rank finds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainshed.machine.cgroup import memory_limit, memory_used

# More than the sum of what is known: the temporary tensors of a module, and the allocator's gaps.
SPARE = 1.25


@dataclass(frozen=True)
class Found:
    """The memory that a rank finds, in bytes.

    free: of its GPU, or of the host.
    group: what its control group may still use; None without a limit, or on a GPU.
    sharers: what names the ranks that share `group`.
    """

    free: float
    group: float | None = None
    sharers: str = ""


def find_memory(device: torch.device) -> Found:
    """Finds this rank's memory as it is now."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Found(torch.cuda.mem_get_info(device)[0] + unused)
    import psutil

    available, limit, used = float(psutil.virtual_memory().available), memory_limit(), memory_used()
    if limit is None or used is None:
        return Found(available)
    try:
        with open("/proc/self/cgroup") as file:
            sharers = file.read()
    except OSError:
        sharers = ""
    return Found(available, float(limit - used), sharers)


def free_bytes(device: torch.device) -> float:
    """Bytes that nobody uses, as if this rank were alone."""
    found = find_memory(device)
    return found.free if found.group is None else min(found.free, found.group)
