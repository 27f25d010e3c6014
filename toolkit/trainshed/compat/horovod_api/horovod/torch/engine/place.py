"""Which rank this process is, by the variables of torchrun's contract, which `train` sets for torchrun and MPI ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """This process among all (`rank`, `size`), on its host (`local_*`), and among those of its local rank (`cross_*`)."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1


def place_of(environ: Mapping[str, str]) -> Place:
    """The place of a process with these variables; that of a single process where there are none.

    Raises:
        ValueError: the variables contradict each other, or mpirun started the process without `train`.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        if int(environ.get("OMPI_COMM_WORLD_SIZE", "1")) > 1:
            raise ValueError(
                "mpirun has started this process, but RANK and MASTER_ADDR are not set: start the job with `train` "
                "(trainshed_distribution = mpi, or horovod)"
            )
        return Place()
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local_rank, local_size = int(environ.get("LOCAL_RANK", rank)), int(environ.get("LOCAL_WORLD_SIZE", size))
    except (KeyError, ValueError) as error:
        raise ValueError(f"RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be numbers: {error}") from None
    if not 0 <= rank < size or not 0 <= local_rank < local_size:
        raise ValueError(f"rank {rank} of {size}, local rank {local_rank} of {local_size}: such a rank cannot be")
    hosts = max(1, size // local_size)
    return Place(
        *(rank, size, local_rank, local_size),
        cross_rank=int(environ.get("GROUP_RANK", rank // local_size)),
        cross_size=int(environ.get("GROUP_WORLD_SIZE", hosts)),
    )
