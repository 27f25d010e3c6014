"""A model whose gradients go another way than DDP's own, until it is given back."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .algorithms import Algorithms
from .bucket_plan import SMALL, BucketPlan, pieces
from .ddp_buckets import OwnBuckets

OWN = "flat"  # DDP's own way


class Reducing:
    """Exchanges a model's gradients by a plan.

    Args:
        model: stays the script's; it is not kept alive.
        algorithms: those of its process group, made for what the plan names; closed with the model.
    """

    def __init__(self, model: DistributedDataParallel, algorithms: Algorithms) -> None:
        self._own = OwnBuckets(model)
        self.algorithms = algorithms
        weakref.finalize(model, algorithms.close)

    def begin(self, model: DistributedDataParallel, plan: BucketPlan) -> None:
        """From the next backward on. Call it between a backward and a forward, on all ranks alike."""
        self._own.change(model, plan.bucket)
        if plan.algorithm != OWN:
            model.register_comm_hook(None, _hook(self.algorithms, plan))

    def end(self, model: DistributedDataParallel) -> None:
        """Gives the gradients back to DDP."""
        self._own.restore(model)
        self.algorithms.close()


def _hook(algorithms: Algorithms, plan: BucketPlan) -> Any:
    def trainshed_reduce(_, bucket):  # type: ignore[no-untyped-def]  # (DDP refuses annotations as text)
        buffer = bucket.buffer()
        flat = torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer.view(-1)
        parts = flat.tensor_split(pieces(flat.numel() * flat.element_size(), plan.bucket))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done = _Countdown(len(parts), future, buffer)
        for piece in parts:
            small = plan.small and piece.numel() * piece.element_size() <= SMALL
            algorithms.average("direct" if small else plan.algorithm, piece, done)
        return future

    return trainshed_reduce


class _Countdown:
    """Completes a future when all pieces are there, or with the first error."""

    def __init__(self, count: int, future: torch.futures.Future[torch.Tensor], result: torch.Tensor) -> None:
        self._left, self._future, self._result = count, future, result
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def __call__(self, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            if self._left:
                return
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(told(self._error))  # type: ignore[arg-type]


def told(error: BaseException) -> RuntimeError:
    """The error that the backward of the other ranks raises."""
    said = RuntimeError(f"trainshed could not exchange the gradients with the other ranks (has one ended?): {error}")
    said.__cause__ = error
    return said


def own_way(group: Any) -> Any:
    """DDP's way, as `links.link_costs` takes it."""

    def way(tensor: torch.Tensor, done: Any) -> None:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.get_future().then(lambda future: done(_error_of(future)))

    return way


def _error_of(future: Any) -> BaseException | None:
    try:
        future.value()
    except BaseException as error:
        return error
    return None
