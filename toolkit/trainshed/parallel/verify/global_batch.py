"""The global batch: what DataLoaders gave to the ranks is kept in N ranks, and given together to the one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from .evidence import Loader

_IGNORED = -100  # torch's word for a target that does not count


class Kept:
    """Batches of one rank.

    Args:
        folder: where they go, a file each; None where they are not kept.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self.loaders: list[Loader] = []
        self.open = folder is not None

    def walk(self, number: int, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches of a DataLoader as they come."""
        loader = self.loaders[number]
        loader.ended.append(False)
        loader.counts.append(0)
        walk = len(loader.ended) - 1
        for batch in batches:
            if self.open and self._folder is not None:
                torch.save(plain(batch), _path(self._folder, self._rank, number, walk, loader.counts[walk]))
                loader.counts[walk] += 1
            yield batch
        if self.open:
            loader.ended[walk] = True


class Fed:
    """Batches of all ranks together, for the one process.

    Args:
        ranks: those that had batches of their own.
        loaders: of the first of them.
    """

    def __init__(self, folder: Path, ranks: Sequence[int], loaders: Sequence[Loader]) -> None:
        self._folder, self._ranks, self.loaders = folder, ranks, loaders
        self._walks: dict[int, int] = {}
        self.used = False

    def walk(self, number: int) -> Iterator[Any]:
        """The batches of a DataLoader, each with the rows of all ranks."""
        self.used = True
        walk = self._walks[number] = self._walks.get(number, -1) + 1
        counts = self.loaders[number].counts if number < len(self.loaders) else []
        for at in range(counts[walk] if walk < len(counts) else 0):
            paths = [_path(self._folder, rank, number, walk, at) for rank in self._ranks]
            yield joined([torch.load(path, weights_only=True) for path in paths if path.exists()])


def _path(folder: Path, rank: int, loader: int, walk: int, at: int) -> Path:
    return folder / f"batch-{rank}-{loader}-{walk}-{at}.pt"


def plain(batch: Any) -> Any:
    """Of dictionaries, lists, tuples, tensors and numbers alone."""
    if isinstance(batch, torch.Tensor):
        return batch.detach().cpu()
    if isinstance(batch, Mapping):
        return {name: plain(one) for name, one in batch.items()}
    if isinstance(batch, tuple):
        return tuple(plain(one) for one in batch)
    if isinstance(batch, list):
        return [plain(one) for one in batch]
    return batch if isinstance(batch, (str, int, float, bool, type(None))) else None


def joined(batches: Sequence[Any]) -> Any:
    """One batch of several: rows of tensors, items of lists of anything else."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return _rows([one for one in batches if isinstance(one, torch.Tensor)])
    if isinstance(first, dict):
        return {name: joined([one[name] for one in batches]) for name in first}
    if isinstance(first, (list, tuple)):
        if first and all(isinstance(one, (str, int, float)) for one in first):
            return type(first)(item for one in batches for item in one)
        return type(first)(joined(items) for items in zip(*batches, strict=True))
    return first


def _rows(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Joined along the first axis; narrower ones get columns of what they are padded with, of zeros otherwise."""
    if not tensors[0].dim():
        return torch.stack(tensors).float().mean().to(tensors[0].dtype) if len(tensors) > 1 else tensors[0]
    if tensors[0].dim() > 1 and len({one.shape[1] for one in tensors}) > 1:
        width = max(one.shape[1] for one in tensors)
        ignored = any(bool((one == _IGNORED).any()) for one in tensors)
        fill = _IGNORED if ignored else 0
        tensors = [F.pad(one, (*(0,) * (2 * (one.dim() - 2)), 0, width - one.shape[1]), value=fill) for one in tensors]
    return torch.cat(tensors)
