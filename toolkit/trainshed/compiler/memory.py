"""How much memory a training step holds at most, and how much there is: of the GPU, or of this process."""

from __future__ import annotations

import os

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def on_gpu() -> bool:
    """Returns whether this process trains on a GPU of torch's."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_initialized()


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
