"""Memory for tensors that have no values yet: addresses are reserved, and pages come from the machine when they are written.

What is read there before is zeros. Linux gives one page of zeros for all of them (`proc_pid_smaps(5)`: they count in no
`Anonymous`), so that a forward through a model that lies here takes no memory for it.
"""

from __future__ import annotations

import mmap
import re

import torch

from ..ground.errors import PipelineError

_RESERVED = 1 << 42  # bytes of addresses: a model of a trillion parameters in float32
_NORESERVE = 0x4000  # mmap(2); Python names it from 3.13 on
_BOUNDARY = 4096


class Arena:
    """One stretch of addresses; parts are never used again, so that an address stands for one storage.

    Raises:
        PipelineError: the system reserves no memory without giving it.
    """

    def __init__(self) -> None:
        try:
            self._memory = mmap.mmap(-1, _RESERVED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
            # No part of core dumps, but for the last page: so it is not counted together with what lies beside it.
            self._memory.madvise(mmap.MADV_DONTDUMP, 0, _RESERVED - _BOUNDARY)
        except (OSError, ValueError, OverflowError, AttributeError) as error:
            raise PipelineError(
                f"addresses for a model without values cannot be reserved: {error}",
                hint="delayed initialisation needs Linux and no limit of addresses (ulimit -v); without it each rank builds "
                "the whole model",
            ) from error
        self._used = 0
        self._start = torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr()

    def tensor(self, size: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor with a storage of its own, which reads as zeros."""
        last = sum((length - 1) * step for length, step in zip(size, stride, strict=True)) if 0 not in size else -1
        place = self._used
        self._used += -(-max(1, (last + 1) * dtype.itemsize) // _BOUNDARY) * _BOUNDARY
        if self._used > _RESERVED - _BOUNDARY:
            raise PipelineError(f"the model has more than {_RESERVED >> 40} TiB of values")
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=max(1, (last + 1) * dtype.itemsize), offset=place)
        return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), 0, size, stride)

    def give_back(self) -> None:
        """Forgets all that was written, and begins anew; no tensor may be in use."""
        self._memory.madvise(mmap.MADV_DONTNEED)
        self._used = 0

    def written(self) -> int:
        """Bytes that something has written, in whole pages."""
        found, inside = 0, False
        with open("/proc/self/smaps") as file:
            for line in file:
                if (place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)) is not None:
                    low, high = (int(word, 16) for word in place.groups())
                    inside = low < self._start + self._used and high > self._start
                elif inside and line.startswith("Anonymous:"):
                    found += int(line.split()[1]) * 1024
        return found
