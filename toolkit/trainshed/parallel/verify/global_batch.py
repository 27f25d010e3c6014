"""The global batch: what DataLoaders gave to the ranks is kept in N ranks, and given together to the one process."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ..ground.shards import whole
from .evidence import Loader

_IGNORED = -100  # torch's word for a target that does not count


class Kept:
    """Batches of one rank.

    Args:
        folder: where they go, a file each; None where they are not kept.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._folder, self.rank = folder, rank
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
                torch.save(plain(batch), _path(self._folder, self.rank, number, walk, loader.counts[walk]))
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


class Batches:
    """What forwards and losses get, where no DataLoader gives it. This one lets all as it is."""

    def inputs(self, step: int, number: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors that a forward gets from the script."""
        return tensors

    def targets(self, step: int, number: int, loss: int, tensor: torch.Tensor) -> torch.Tensor:
        """What a loss gets from the script."""
        return tensor


class KeptBatches(Batches):
    """In a rank: they are kept, unless a DataLoader was asked for some before."""

    def __init__(self, folder: Path, kept: Kept) -> None:
        self._folder, self._kept = folder, kept

    def inputs(self, step: int, number: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """As they are."""
        self._keep(f"{step}-{number}", tensors)
        return tensors

    def targets(self, step: int, number: int, loss: int, tensor: torch.Tensor) -> torch.Tensor:
        """As it is."""
        self._keep(f"{step}-{number}-{loss}", [tensor])
        return tensor

    def _keep(self, name: str, tensors: list[torch.Tensor]) -> None:
        if not any(one.ended for one in self._kept.loaders):
            made = [whole(one.detach()).cpu() for one in tensors]
            torch.save(made, self._folder / f"given-{self._kept.rank}-{name}.pt")


class GivenBatches(Batches):
    """In the one process: those of all ranks, where the script has made others, as one of the ranks would.

    Args:
        rows: step and number of a forward -> digests of the rows that all ranks had.

    made: whether some were given.
    """

    def __init__(self, folder: Path, ranks: Sequence[int], rows: Mapping[tuple[int, int], list[str]]) -> None:
        self._folder, self._ranks, self._rows = folder, ranks, rows
        self._others = False
        self.made = False

    def inputs(self, step: int, number: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Those of all ranks, if it had others."""
        wanted = self._rows.get((step, number), [])
        self._others = bool(wanted) and sorted(rows_in(tensors)) != sorted(wanted)
        return self._given(f"{step}-{number}", tensors)

    def targets(self, step: int, number: int, loss: int, tensor: torch.Tensor) -> torch.Tensor:
        """That of all ranks, if the forward had others."""
        return self._given(f"{step}-{number}-{loss}", [tensor])[0]

    def _given(self, name: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        paths = [self._folder / f"given-{rank}-{name}.pt" for rank in self._ranks]
        if not self._others or not all(path.exists() for path in paths):
            return tensors
        self.made = True
        found = zip(*[torch.load(path, weights_only=True) for path in paths], strict=True)
        return [_rows(list(parts)).to(own.device) for own, parts in zip(tensors, found, strict=True)]


def rows_in(tensors: Sequence[torch.Tensor]) -> list[str]:
    """A digest of each row of a forward's inputs."""
    if not tensors:
        return []
    count = tensors[0].shape[0]
    digests: defaultdict[int, Any] = defaultdict(hashlib.blake2b)
    for tensor in tensors:
        if tensor.shape[0] == count:
            plain = whole(tensor.detach()).cpu().contiguous().reshape(count, -1)
            flat = plain.view(torch.uint8) if plain.dtype != torch.bool else plain.to(torch.uint8)
            for number, row in enumerate(flat.numpy()):
                digests[number].update(row.tobytes())
    return [digests[number].hexdigest()[:16] for number in range(count)]
