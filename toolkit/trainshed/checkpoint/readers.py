"""Lets the processes that read data for a rank live until the rank lets them go.

A signal to all processes of a job (a shell's program under `train`, a job of Slurm's) reaches the workers of torch's
DataLoader, too. They would end at once, and the rank, which wants to come to the end of its step, would fail.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import resource_tracker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class leave_stopping_to_the_rank:
    """A `worker_init_fn` for DataLoader: the worker ends at a SIGTERM of its own rank, and at no other.

    Args:
        then: the user's own `worker_init_fn`.
    """

    def __init__(self, then: Callable[[int], None] | None = None) -> None:
        self.then = then

    def __call__(self, worker: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # Python's signal handlers do not know the sender.
        rank = multiprocessing.parent_process()
        sender = os.getppid() if rank is None or rank.pid is None else rank.pid
        threading.Thread(target=_end_with, args=(sender,), daemon=True).start()
        if self.then is not None:
            self.then(worker)


def _end_with(rank: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank:
        pass
    os._exit(0)


def keep_readers() -> None:
    """Gives all DataLoaders of this process that `worker_init_fn`, also those that there are already."""
    if "torch" not in sys.modules:
        return
    from torch.utils.data import DataLoader

    if isinstance(vars(DataLoader).get("worker_init_fn"), property):
        return
    DataLoader.worker_init_fn = property(_kept, _keep)  # type: ignore[method-assign, assignment]
    begin = DataLoader.__iter__

    @functools.wraps(begin)
    def begin_blocked(loader: Any) -> Any:
        context = loader.multiprocessing_context or multiprocessing
        if not loader.num_workers or context.get_start_method() == "forkserver":  # its processes are started by another
            return begin(loader)
        resource_tracker.ensure_running()  # it would let the signal through again while it starts
        # Processes that are being started have this thread's mask until they come to their `worker_init_fn`.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return begin(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    DataLoader.__iter__ = begin_blocked  # type: ignore[method-assign]


def _kept(loader: Any) -> leave_stopping_to_the_rank:
    wanted = vars(loader).get("worker_init_fn")
    return wanted if isinstance(wanted, leave_stopping_to_the_rank) else leave_stopping_to_the_rank(wanted)


def _keep(loader: Any, value: Callable[[int], None] | None) -> None:
    vars(loader)["worker_init_fn"] = value
