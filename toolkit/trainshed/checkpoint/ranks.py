"""The ranks of the job as the checkpoint needs them: who I am, who shares my storage, and one tiny collective.

All talk goes over a gloo group of its own: it never touches the GPU, and never mixes with the script's collectives.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import secrets
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Ranks:
    """One process by itself; `Group` is the same for many.

    rank, world_size: place in the job.
    part, parts: index of the storage that this rank writes to, and number of storages.
    peers: the ranks that share it, in order; the first of them publishes.
    host: name of this host, fit for a file name.
    token: the same random word on all ranks, another one in each run.
    """

    def __init__(self) -> None:
        name = os.environ.get("SM_CURRENT_HOST") or socket.gethostname()
        self.host = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:64] or "host"
        self.rank, self.world_size = 0, 1
        self.part, self.parts = 0, 1
        self.peers: tuple[int, ...] = (0,)
        self.token = secrets.token_hex(4)

    @property
    def leads(self) -> bool:
        """Whether this rank publishes for its storage."""
        return self.rank == self.peers[0]

    def highest(self, values: Sequence[float]) -> list[float]:
        """The highest of each value over all ranks."""
        return list(values)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value (any picklable object), in order of ranks."""
        return [value]

    def share_storage(self, folder: str) -> None:
        """Finds out who sees the same folder. Raises OSError where it cannot be written."""
        os.makedirs(folder, exist_ok=True)

    def close(self) -> None:
        """No more talk; each rank for itself, in its own time."""


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
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.peers = tuple(range(self.world_size))
        self.token = self.gather(self.token)[0]

    def highest(self, values: Sequence[float]) -> list[float]:
        """The highest of each value over all ranks: one all-reduce of a few numbers."""
        tensor = self._torch.tensor(values, dtype=self._torch.float64)
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX, group=self._group)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of ranks."""
        found: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(found, value, group=self._group)
        return found

    def share_storage(self, folder: str) -> None:
        """Finds out who sees the same folder: every rank leaves a file and looks for those of the others.

        Raises:
            OSError: this rank, or another one, cannot write there.
        """
        problem: OSError | None = None
        mine = f"{folder}/.aside-probe-{self.token}-{self.rank}"
        try:
            os.makedirs(folder, exist_ok=True)
            with open(mine, "w"):
                pass
        except OSError as error:
            problem = error
        self.gather(None)  # all files are there
        seen = tuple(r for r in range(self.world_size) if os.path.exists(f"{folder}/.aside-probe-{self.token}-{r}"))
        everyone = self.gather(seen)
        try:
            os.unlink(mine)
        except OSError:
            pass
        if problem is not None:
            raise problem
        blind = next((rank for rank, peers in enumerate(everyone) if rank not in peers), None)
        if blind is not None:  # all ranks fail together, or the others would wait for it
            raise OSError(
                errno.EIO, f"rank {blind} does not find there what it has written; does another job use the folder?"
            )
        storages = sorted(set(everyone))
        self.peers, self.part, self.parts = seen, storages.index(seen), len(storages)

    def close(self) -> None:
        """Ends the group, which waits for gloo's threads to put down the tensors of the last exchange.

        A thread that still holds the last reference to one when the interpreter is taken apart aborts the process.
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
