"""Version 1's DistributedDataParallel: that of torch, with its arguments in the library's order.

Its gradients go between hosts as the job's `trainshed_reduce` says, by default `auto`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel as _TorchDDP
from torch.nn.parallel import distributed as _distributed

from trainshed.parallel.data import ddp_hook

ddp_hook.install(_distributed, default="auto")


class DistributedDataParallel(_TorchDDP):
    """A module whose gradients are averaged over all ranks. Unlike the library it can broadcast buffers.

    Args:
        module: the same on all ranks.
        device_ids, output_device, broadcast_buffers, process_group, bucket_cap_mb: as torch has them.
        options: further ones of torch's class.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: list[int] | None = None,
        output_device: int | None = None,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = 25,
        **options: Any,
    ) -> None:
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            **options,
        )
