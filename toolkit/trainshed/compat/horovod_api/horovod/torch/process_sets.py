"""Process sets: parts of the ranks that run operations of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .engine.agreement import WORLD
from .engine.handle import Handle
from .engine.place import Place
from .session import worker


class ProcessSet:
    """Some of the ranks. `add_process_set`, or `hvd.init(process_sets=[...])`, makes it usable.

    Args:
        ranks_or_comm: ranks, or a communicator of mpi4py's.

    Attributes:
        ranks: sorted.
        process_set_id: a number, the same on all ranks; None before the set was added.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.ranks: list[int] = sorted(ranks_of(ranks_or_comm))
        self.process_set_id: int | None = None
        self.mpi_comm = None
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"a process set has each rank once, not {self.ranks}")

    def included(self) -> bool:
        """Returns whether this rank is one of them."""
        return worker().place.rank in self.ranks

    def rank(self) -> int:
        """This rank's index among them.

        Raises:
            ValueError: this rank is not one of them.
        """
        return self.ranks.index(member_of(self))

    def size(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


def ranks_of(ranks_or_comm: Any) -> list[int]:
    """Ranks as a list; those of a communicator of mpi4py's by their numbers in COMM_WORLD."""
    if isinstance(ranks_or_comm, Sequence):
        return [int(rank) for rank in ranks_or_comm]
    if hasattr(ranks_or_comm, "Get_group"):
        from mpi4py import MPI

        group = ranks_or_comm.Get_group()
        return list(MPI.Group.Translate_ranks(group, list(range(group.Get_size())), MPI.COMM_WORLD.Get_group()))
    raise TypeError(f"ranks must be a list, not {type(ranks_or_comm).__name__}")


global_process_set = ProcessSet([])  # all ranks, once Horovod is initialized
_added: dict[int, ProcessSet] = {}


def enter(place: Place) -> None:
    """Horovod was initialized: the set of all ranks has its ranks."""
    global_process_set.ranks = list(range(place.size))
    global_process_set.process_set_id = WORLD
    _added[WORLD] = global_process_set


def leave() -> None:
    """Horovod was shut down: there are no sets."""
    for one in _added.values():
        one.process_set_id = None
    _added.clear()


def member_of(process_set: ProcessSet) -> int:
    """This rank, which is in the set.

    Raises:
        ValueError: it is not, or the set was not added.
    """
    rank = worker().place.rank
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} was not added: call hvd.add_process_set() on all ranks")
    if rank not in process_set.ranks:
        raise ValueError(f"rank {rank} is not in {process_set}: only its ranks may take part")
    return rank


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a set usable. All ranks call it, also those that are not in the set, and in the same order.

    Raises:
        ValueError: there is such a set, or no such rank.
        HorovodInternalError: ranks ask for different sets.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    here = worker()
    wrong = [rank for rank in made.ranks if not 0 <= rank < here.place.size]
    if wrong or not made.ranks:
        raise ValueError(f"{made}: there are ranks 0 to {here.place.size - 1}")
    if any(one.ranks == made.ranks for one in _added.values()):
        raise ValueError(f"{made}: there is a process set of these ranks")
    request = {"set": WORLD, "name": "add_process_set", "kind": "add_set", "ranks": made.ranks}
    handle = here.submit(Handle(request, [], lambda outputs: None))
    here.wait(handle)
    made.process_set_id = int(handle.extra)
    _added[made.process_set_id] = made
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set, on all ranks; False for the set of all ranks and for one that was not added."""
    number = process_set.process_set_id
    if number is None or number == WORLD:
        return False
    here = worker()
    request = {"set": WORLD, "name": "remove_process_set", "kind": "remove_set", "root": number}
    here.wait(here.submit(Handle(request, [], lambda outputs: None)))
    _added.pop(number, None)
    process_set.process_set_id = None
    return True


def process_set_by_id(number: int) -> ProcessSet:
    """An added set by its number; raises KeyError where there is none."""
    return _added[number]
