"""`hvd.init` and what it makes known: the ranks, and what this Horovod can do."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .engine.place import Place
from .process_sets import add_process_set, enter, leave, ranks_of
from .session import session, worker


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins all ranks of the job. A second call does nothing.

    Args:
        comm: None, all ranks as a list, or mpi4py's COMM_WORLD.
        process_sets: `ProcessSet`s, the same on all ranks; "dynamic", which they always are here; or None.

    Raises:
        ValueError: `comm` is a part of the ranks: give `process_sets` instead.
        HorovodInternalError: not all ranks came.
    """
    if session.worker is not None:
        return
    made = session.start()
    place = made.place
    enter(place)
    if comm is not None and ranks_of(comm) not in ([], list(range(place.size))):
        raise ValueError("hvd.init(comm=...) is served for all ranks only: use process_sets for a part of them")
    if process_sets is not None and not isinstance(process_sets, str):
        for one in process_sets:
            add_process_set(one)


def shutdown() -> None:
    """Leaves; operations that others have announced and this rank has not fail there."""
    if session.worker is not None:
        session.worker.close()
        session.worker = None
        leave()


def is_initialized() -> bool:
    """Returns whether `init` was called, and `shutdown` was not."""
    return session.worker is not None


def _place() -> Place:
    return worker().place


def rank() -> int:
    """This process among all."""
    return _place().rank


def size() -> int:
    """How many processes there are."""
    return _place().size


def local_rank() -> int:
    """This process on its host."""
    return _place().local_rank


def local_size() -> int:
    """How many processes there are on this host."""
    return _place().local_size


def cross_rank() -> int:
    """This host among those that have a process of this local rank."""
    return _place().cross_rank


def cross_size() -> int:
    """How many hosts have a process of this local rank."""
    return _place().cross_size


def is_homogeneous() -> bool:
    """Returns whether all hosts have as many processes: always so here."""
    return _place().size == _place().local_size * _place().cross_size


def mpi_threads_supported() -> bool:
    """Operations do not go over MPI, also where mpirun has started the ranks."""
    _place()
    return False


def mpi_enabled() -> bool:
    """Returns whether operations go over MPI: never here."""
    return False


def mpi_built() -> bool:
    """Returns whether operations can go over MPI: never here."""
    return False


def gloo_enabled() -> bool:
    """Returns whether operations go over gloo: those on tensors of the CPU do."""
    return True


def gloo_built() -> bool:
    """Returns whether torch has gloo."""
    return bool(dist.is_gloo_available())


def nccl_built() -> int:
    """NCCL's version, like 22703, where torch has NCCL; else 0."""
    if not dist.is_nccl_available() or not torch.cuda.is_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]
    return int(major) * 10_000 + int(minor) * 100 + int(patch)


def ddl_built() -> bool:
    """IBM's library: never."""
    return False


def ccl_built() -> bool:
    """Intel's library: never."""
    return False


def cuda_built() -> bool:
    """Returns whether torch is made for CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Returns whether torch is made for ROCm."""
    return torch.version.hip is not None
