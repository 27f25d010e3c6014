"""Keeps the position in the data, so that a resumed run continues with the next sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Sampler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ResumableSampler(Sampler[int]):
    """The indices of a data set in an order that seed and epoch determine, divided among the ranks.

    The position counts samples of all ranks together, so another number of ranks continues at the same place. At the
    end of an epoch samples that would not make a full round over the ranks are left out.

    Args:
        size: samples in the data set.
        rank, world_size: this rank's place; the default group's where torch.distributed is initialized.
    """

    def __init__(
        self, size: int, *, shuffle: bool = True, seed: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> None:
        dist = torch.distributed
        running = dist.is_available() and dist.is_initialized()
        self.size = size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank if rank is not None else dist.get_rank() if running else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if running else 1
        self.epoch = 0
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(self.size, generator=generator)
        else:
            order = torch.arange(self.size)
        end = self.position + len(self) * self.world_size
        return iter(order[self.position + self.rank : end : self.world_size].tolist())

    def __len__(self) -> int:
        return max(0, self.size - self.position) // self.world_size

    def state_dict(self) -> dict[str, int]:
        """Returns epoch and position."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues at the epoch and position of `state`."""
        self.epoch = state["epoch"]
        self.position = state["position"]


class ResumableLoader:
    """A DataLoader over a `ResumableSampler` that counts what the loop has taken; iterate it once an epoch.

    Workers fetch ahead of the loop, so the sampler itself cannot know. Making an iterator leaves the global random
    generator as it was: a resumed run draws the same numbers as one that never stopped. Random numbers drawn inside
    worker processes start anew with each iterator.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if not isinstance(loader.sampler, ResumableSampler) or loader.batch_size is None:
            raise ValueError("ResumableLoader needs a DataLoader with sampler=ResumableSampler(...) and a batch_size")
        self.loader = loader
        self.sampler = loader.sampler
        self.batch_size = loader.batch_size

    def __iter__(self) -> Iterator[Any]:
        before = torch.get_rng_state()
        torch.manual_seed(self.sampler.seed * 1_000_003 + self.sampler.epoch)
        batches = iter(self.loader)
        torch.set_rng_state(before)
        start = self.sampler.position
        for number, batch in enumerate(batches, 1):
            self.sampler.position = start + number * self.batch_size * self.sampler.world_size
            yield batch
        self.sampler.epoch, self.sampler.position = self.sampler.epoch + 1, 0

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, int]:
        """Returns epoch and position."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues at the epoch and position of `state`."""
        self.sampler.load_state_dict(state)
