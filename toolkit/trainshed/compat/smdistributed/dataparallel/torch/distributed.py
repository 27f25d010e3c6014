"""Version 1 of the library: torch.distributed under another name, without arguments to `init_process_group`.

What is not named here is that of torch.distributed. The whole world is a group's default; other groups work, too.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as _dist

group = _dist.group


class ReduceOp:
    """How tensors are combined."""

    AVERAGE = _dist.ReduceOp.AVG
    SUM = _dist.ReduceOp.SUM
    MIN = _dist.ReduceOp.MIN
    MAX = _dist.ReduceOp.MAX


class _Averaging:
    """The handle of a sum that becomes an average when it has been waited for."""

    def __init__(self, work: Any, tensor: torch.Tensor, count: int) -> None:
        self._work, self._tensor, self._count = work, tensor, count

    def wait(self, *arguments: Any) -> bool:
        done = bool(self._work.wait(*arguments))
        count, self._count = self._count, 1
        if count > 1:
            _divide(self._tensor, count)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def init_process_group(**options: Any) -> None:
    """Joins the job's ranks, over NCCL where there is a GPU and over gloo else; options are those of torch.distributed.

    Raises:
        ValueError: this is not a rank of a job: `RANK` and its like are not set.
    """
    if "backend" not in options:
        options["backend"] = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    _dist.init_process_group(**options)


def get_local_rank() -> int:
    """The rank of this process on its host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def all_reduce(tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    """Combines a tensor of all ranks, in place; a handle with `async_op`, else None. gloo can average here, too."""
    if op != ReduceOp.AVERAGE:
        return _dist.all_reduce(tensor, op, group, async_op)
    work = _dist.all_reduce(tensor, ReduceOp.SUM, group, async_op)
    count = _dist.get_world_size(group)
    if async_op:
        return _Averaging(work, tensor, count)
    _divide(tensor, count)
    return None


def broadcast(tensor: torch.Tensor, src: int = 0, group: Any = None, async_op: bool = False) -> Any:
    """Gives all ranks the tensor of one of them; a handle with `async_op`, else None."""
    return _dist.broadcast(tensor, src, group, async_op)


def barrier(group: Any = None, async_op: bool = False) -> Any:
    """Waits for all ranks; a handle with `async_op`, else None."""
    return _dist.barrier(group, async_op)


def _divide(tensor: torch.Tensor, count: int) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.div_(count)
    else:
        tensor.div_(count, rounding_mode="trunc")


def __getattr__(name: str) -> Any:
    return getattr(_dist, name)
