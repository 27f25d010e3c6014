"""A sampler that remembers which samples were seen in this epoch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from ..basics import rank, size


class ElasticSampler(Sampler[int]):
    """Deals the samples of a dataset to the ranks, without those that were seen in this epoch before a restart.

    All ranks have equally many; a few samples are given twice where they cannot be shared evenly.

    Args:
        dataset: has a length.
        shuffle: in another order in each epoch; the same on all ranks.
        seed: of the order; the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in which nothing was seen yet; to be called at its end for the next one, or at its start."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """The samples of this rank's batch `batch_idx` were seen."""
        self.record_indices(set(self.get_indices(batch_idx, batch_size)))

    def record_indices(self, indices: Any) -> None:
        """These samples were seen."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch `batch_idx`."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what was seen."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and the samples seen in it by this rank."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def reset(self) -> None:
        """Deals what was not seen yet anew."""
        self.rank, self.num_replicas = rank(), size()
        left = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            random.Random(f"{self.seed} {self.epoch}").shuffle(left)
        self.remaining_indices = left
        self.num_samples = math.ceil(len(left) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        padded = left + [left[number % len(left)] for number in range(self.total_size - len(left))]
        self.indices = padded[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.indices))

    def __len__(self) -> int:
        return self.num_samples
