"""What the step function returned on the last stage, on all ranks of the pipeline."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..record.trace import Slot
from ..tree import map_leaves


class _Described:
    """Stands for a tensor while the structure is sent."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


# Two numbers at the start of a message: its length, and that of the description of the structure (0: as before).
_HEADER = 16


@dataclass
class Post:
    """Sends the results of one kind of step: in one message, if the last one was as long.

    room: bytes of a message; the same on all ranks.
    described: the structure that was sent last, pickled.
    """

    room: int = 2 * _HEADER
    described: bytes = b""

    def share(self, results: list[Any] | None, source: int, group: dist.ProcessGroup, device: torch.device) -> list[Any]:
        """Results of all microbatches on every rank of `group`.

        Args:
            results: one entry a microbatch on the source rank, None elsewhere.
            source: global rank of the last stage.
            device: of the returned tensors.
        """
        if dist.get_world_size(group) == 1:
            return results or []
        if results is not None:
            letter = self._written(results, device)
            self._send(letter, source, group)
            return results
        letter = torch.empty(self.room, dtype=torch.uint8, device=device)
        dist.broadcast(letter, src=source, group=group)
        length = int(letter[:8].view(torch.int64))
        if length > self.room:
            self.room = length
            letter = torch.empty(length, dtype=torch.uint8, device=device)
            dist.broadcast(letter, src=source, group=group)
        return self._read(letter, device)

    def _send(self, letter: torch.Tensor, source: int, group: dist.ProcessGroup) -> None:
        first = letter[: self.room]
        if len(letter) < self.room:
            first = torch.cat([letter, letter.new_zeros(self.room - len(letter))])
        dist.broadcast(first, src=source, group=group)
        if len(letter) > self.room:
            self.room = len(letter)
            dist.broadcast(letter, src=source, group=group)

    def _written(self, results: list[Any], device: torch.device) -> torch.Tensor:
        parts: list[torch.Tensor] = []

        def describe(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return _portable(leaf)
            plain = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            if len(plain):
                parts.append(plain.view(torch.uint8).to(device))
            return _Described(leaf)

        described = pickle.dumps(map_leaves(describe, results))
        fresh = b"" if described == self.described else described
        self.described = described
        length = _HEADER + len(fresh) + sum(map(len, parts))
        head = torch.tensor([length, len(fresh)]).view(torch.uint8)
        if fresh:
            head = torch.cat([head, torch.frombuffer(bytearray(fresh), dtype=torch.uint8)])
        return torch.cat([head.to(device), *parts])

    def _read(self, letter: torch.Tensor, device: torch.device) -> list[Any]:
        fresh = int(letter[8:_HEADER].view(torch.int64))
        at = _HEADER + fresh
        if fresh:
            self.described = bytes(letter[_HEADER:at].tolist())

        def filled(leaf: Any) -> Any:
            nonlocal at
            if not isinstance(leaf, _Described):
                return leaf
            made = torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
            if made.numel():
                size = made.numel() * made.element_size()
                made.view(-1).view(torch.uint8).copy_(letter[at : at + size])
                at += size
            return made

        found: list[Any] = map_leaves(filled, pickle.loads(self.described))
        return found


def _portable(leaf: Any) -> Any:
    """The value, or None if it cannot be sent (a lock, a file ...)."""
    if isinstance(leaf, (Slot, str, int, float, bool, type(None))):
        return leaf
    try:
        pickle.dumps(leaf)
    except Exception:
        return None
    return leaf
