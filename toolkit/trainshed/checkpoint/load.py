"""Fills tensors from a verified checkpoint, whatever number of ranks wrote it.

Here are plain tensors, which are put together from their pieces; `dcp` fills sharded ones.
"""

from __future__ import annotations

import mmap
import os
import re

import torch

from .folder import Found
from .manifest import Damaged
from .shardfile import Piece, read_header
from .write_plan import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


_OBJECTS = re.compile(r"\.rank(\d+)\.objects$")


class StoredTensors:
    """The tensors in safetensors files, which are mapped, and read when they are used.

    Raises:
        Damaged: one of them is not such a file.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.pieces: dict[str, dict[tuple[int, ...], tuple[Piece, torch.Tensor]]] = {}
        for file in files:
            for piece, data in read_header(_map(file), os.path.basename(file)):
                self.pieces.setdefault(piece.key, {})[piece.offsets] = (piece, data)

    @property
    def stored(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and whole shape of every tensor."""
        firsts = {key: next(iter(pieces.values()))[0] for key, pieces in self.pieces.items()}
        return {key: (piece.torch_dtype, piece.whole) for key, piece in firsts.items()}

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies the stored values into plain tensors (`fill.fill` takes sharded ones too).

        Raises:
            ValueError: a tensor is not stored, stored with another shape, or not in full.
        """
        with torch.no_grad():
            for key, tensor in tensors.items():
                self.require(key, tuple(tensor.shape))
                for piece, data in self.pieces[key].values():
                    part = tensor
                    for axis, (at, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
                        part = part.narrow(axis, at, size)
                    part.copy_(data)

    def require(self, key: str, shape: tuple[int, ...]) -> None:
        """Raises ValueError unless a tensor is stored in full, with this whole shape."""
        if key not in self.pieces:
            raise ValueError(f"{key} is not in the checkpoint")
        pieces = [piece for piece, _ in self.pieces[key].values()]
        if pieces[0].whole != shape:
            raise ValueError(f"{key} has the shape {shape}, in the checkpoint {pieces[0].whole}")
        if not covers(pieces):
            raise ValueError(f"{key} is not complete in the checkpoint")


class Contents(StoredTensors):
    """The tensors and trees in a checkpoint."""

    def __init__(self, checkpoint: Found) -> None:
        self.checkpoint = checkpoint
        names = (file.name for part in checkpoint.parts for file in part.files)
        super().__init__(f"{checkpoint.path}/{name}" for name in names if name.endswith(".safetensors"))

    def trees(self) -> dict[int, dict[str, Any]]:
        """The plain objects of each rank, by rank.

        Raises:
            Damaged: an entry needs a class that torch does not load from files.
        """
        trees = {}
        for part in self.checkpoint.parts:
            for file in part.files:
                match = _OBJECTS.search(file.name)
                if match is None:
                    continue
                try:
                    path = f"{self.checkpoint.path}/{file.name}"
                    trees[int(match[1])] = torch.load(path, map_location="cpu", weights_only=True)
                except Exception as error:
                    raise Damaged(f"{file.name} cannot be loaded: {str(error).splitlines()[0]}") from error
        return trees


def _map(path: str) -> torch.Tensor:
    """A file's bytes as a uint8 tensor; they are read when they are used."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not os.fstat(fd).st_size:
            raise Damaged(f"{os.path.basename(path)} is empty")
        # Private and writable, or torch would warn that it cannot keep anyone from writing.
        mapped = mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return torch.frombuffer(mapped, dtype=torch.uint8)
