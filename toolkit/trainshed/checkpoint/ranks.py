"""The ranks of the job as checkpoints need them: this rank, which ranks share its storage, and two small collectives.

The collectives use a separate gloo group: they never touch the GPU and never mix with the script's collectives.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import secrets
import socket

from trainshed.contract.wire.in_place import life_of

from . import storage_check as ground

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Ranks:
    """The ranks of a job with one process; `Group` is for several, whose `gather` and `highest` are collectives.

    rank, world_size: this rank's number, and the number of ranks in the job.
    part, parts: index of the storage that this rank writes to, and number of storages.
    peers: the ranks that share the storage, in order; the first of them publishes.
    host: name of this host, safe in a file name.
    token: a random word, the same on all ranks and different in each run.
    """

    def __init__(self) -> None:
        name = os.environ.get("SM_CURRENT_HOST") or socket.gethostname()
        self.host = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:64] or "host"
        self.rank = 0
        self.world_size = 1
        self.part = 0
        self.parts = 1
        self.peers: tuple[int, ...] = (0,)
        self.token = secrets.token_hex(4)
        self._life = life_of(os.environ)

    @property
    def stale(self) -> bool:
        """Tells whether a rank was lost since (`in_place`), so that nothing may be written in their name any more."""
        return self._life != life_of(os.environ)

    @property
    def leads(self) -> bool:
        """Tells whether this rank publishes for its storage."""
        return self.rank == self.peers[0]

    def highest(self, values: Sequence[float]) -> list[float]:
        """The highest of each value over all ranks."""
        return list(values)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value (any picklable object), in order of ranks."""
        return [value]

    def send(self, data: bytes, rank: int) -> None:
        """Sends bytes (not none) to a rank that calls `receive`."""
        raise NotImplementedError(f"{type(self).__name__} sends no bytes")

    def receive(self, size: int, rank: int) -> bytes:
        """The `size` bytes that a rank sends here."""
        raise NotImplementedError(f"{type(self).__name__} sends no bytes")

    def share_storage(self, folder: str, name: str = "probe") -> None:
        """Finds out which ranks see the same folder: every rank leaves a file and looks for those of the others.

        Args:
            name: the checkpoint that is to be saved there, if it is one.

        Raises:
            OSError: this rank, or another one, cannot write there.
        """
        if self.world_size == 1:
            ground.probe(folder, name, self.token, self.rank)
            return
        problem: OSError | None = None
        mine = ground.probe_path(folder, name, self.token, self.rank)
        try:
            ground.probe(folder, name, self.token, self.rank)
            with open(mine, "w"):
                pass
        except OSError as error:
            problem = error
        answers = self.gather(problem and (problem.errno, problem.strerror, folder))  # all files are there
        paths = [ground.probe_path(folder, name, self.token, rank) for rank in range(self.world_size)]
        seen = tuple(rank for rank, path in enumerate(paths) if os.path.exists(path))
        seen_by_rank = self.gather(seen)
        try:
            os.unlink(mine)
        except OSError:
            pass
        if problem is not None:
            raise problem
        for rank, answer in enumerate(answers):
            if answer:  # all ranks fail together
                place = "" if answer[2] == folder else f", in {answer[2]}"
                raise OSError(answer[0], f"{answer[1]} (rank {rank}{place})", folder)
        blind = next((rank for rank, peers in enumerate(seen_by_rank) if rank not in peers), None)
        if blind is not None:  # all ranks fail together, or the others would wait for it
            raise OSError(
                errno.EIO, f"rank {blind} does not find the file that it has written there; does another job use the folder?"
            )
        storages = sorted(set(seen_by_rank))
        self.peers = seen
        self.part = storages.index(seen)
        self.parts = len(storages)

    def tell(self, key: str, text: str) -> None:
        """Lets the other ranks know something without a collective and without the storage; from any thread."""

    def told(self, key: str) -> str:
        """Returns what a rank has told under a key, "" if nothing."""
        return ""

    def close(self) -> None:
        """Ends the communication. Not collective."""


class Group(Ranks):
    """The ranks of torch.distributed's default group; constructed by all of them together.

    Args:
        group: a gloo process group of all ranks that stays the caller's; without one, a new group is created.
    """

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        import torch
        import torch.distributed as dist

        self._torch = torch
        self._dist = dist
        self._owns_group = group is None
        self._group: Any = dist.new_group(backend="gloo") if group is None else group
        atexit.register(self.close)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.peers = tuple(range(self.world_size))
        self.token = self.gather(self.token)[0]
        self._store: Any = dist.distributed_c10d._get_default_store()

    def tell(self, key: str, text: str) -> None:
        """Through the store by which the ranks have met; where that is gone, nobody is told."""
        try:
            self._store.set(f"trainshed/{self.token}/{key}", text)
        except Exception:
            pass

    def told(self, key: str) -> str:
        """Returns what a rank has told under a key, "" if nothing, or the store is gone."""
        name = f"trainshed/{self.token}/{key}"
        try:
            return str(self._store.get(name).decode("utf-8", "replace")) if self._store.check([name]) else ""
        except Exception:
            return ""

    def highest(self, values: Sequence[float]) -> list[float]:
        """The highest of each value over all ranks: one all-reduce of a few numbers."""
        tensor = self._torch.tensor(values, dtype=self._torch.float64)
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX, group=self._group)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of ranks."""
        values: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(values, value, group=self._group)
        return values

    def send(self, data: bytes, rank: int) -> None:
        """Sends bytes (not none) to a rank that calls `receive`."""
        tensor = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
        self._dist.send(tensor, rank, group=self._group)

    def receive(self, size: int, rank: int) -> bytes:
        """The `size` bytes that a rank sends here."""
        tensor = self._torch.empty(size, dtype=self._torch.uint8)
        self._dist.recv(tensor, rank, group=self._group)
        return tensor.numpy().tobytes()

    def close(self) -> None:
        """Ends the group, which waits until gloo's threads have released the tensors of the last exchange.

        A thread that still holds the last reference to one when the interpreter shuts down aborts the process.
        """
        atexit.unregister(self.close)
        group, self._group = self._group, None
        if group is not None and self._owns_group:
            try:
                self._dist.destroy_process_group(group)
            except (AssertionError, ValueError, RuntimeError):  # the script has ended all groups already
                pass


def current(group: Any = None) -> Ranks:
    """The ranks of this process: alone unless torch.distributed has been initialized with several.

    Args:
        group: see `Group`.
    """
    import sys

    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Ranks()
    return Group(group)
