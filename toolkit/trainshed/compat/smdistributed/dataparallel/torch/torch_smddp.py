"""`import smdistributed.dataparallel.torch.torch_smddp` makes `init_process_group(backend="smddp")` work.

The backend is gloo where there is no GPU and NCCL where there is one, with all that these can do: subgroups, FSDP2, objects.
Gradients of DistributedDataParallel go between hosts as the job's `trainshed_reduce` says, by default `auto`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed

from trainshed.parallel.data import ddp_hook

NAME = "smddp"


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """The backend of one process group."""
    if torch.cuda.is_available():
        return dist.ProcessGroupNCCL(store, rank, size, timeout)  # type: ignore[call-arg, arg-type]
    return dist.ProcessGroupGloo(store, rank, size, timeout)


if NAME not in dist.Backend.backend_list:
    dist.Backend.register_backend(NAME, _create, devices=["cpu", "cuda"])
ddp_hook.install(distributed, default="auto")
