"""The step function's results on the last stage, given to all ranks of the pipeline.

Tensors are sent as such, everything else is pickled. What cannot be pickled, and an object that keeps tensors to itself (a
cache, of which each stage has its own part), is on no rank what it is in one process: it is replaced everywhere by a word
about that.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ..ground.errors import PipelineError
from ..ground.tree import Stand, map_leaves


class _Described(Stand):
    """Stands for a tensor while the structure is sent."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.bytes = tensor.numel() * tensor.element_size()


# Two numbers at the start of a message: its length, and that of the description of the structure (0: as before).
_HEADER = 16
# In place of a structure that cannot be sent.
_LOCAL = pickle.dumps(None)


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
            results = map_leaves(_portable, results, objects=True)
            letter = self._written(results, device)
            self._send(letter, source, group)
            return self._whole(results)
        letter = torch.empty(self.room, dtype=torch.uint8, device=device)
        dist.broadcast(letter, src=source, group=group)
        length = int(letter[:8].view(torch.int64))
        if length > self.room:
            self.room = length
            letter = torch.empty(length, dtype=torch.uint8, device=device)
            dist.broadcast(letter, src=source, group=group)
        return self._whole(self._read(letter, device))

    def _whole(self, results: list[Any]) -> list[Any]:
        if self.described == _LOCAL:
            raise PipelineError(
                "the step function returns an object of a class that is made in a function, which other ranks do not have",
                hint="return tensors, tuples or dictionaries, or move the class to the top of its file",
            )
        return results

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
                return leaf
            plain = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            if len(plain):
                parts.append(plain.view(torch.uint8).to(device))
            return _Described(leaf)

        structure = map_leaves(describe, results, objects=True)
        described = _pickled(structure)
        if described is None or (described != self.described and not _pickles(structure)):
            described, parts = _LOCAL, []
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
            size = leaf.bytes
            if not size:
                return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
            made = letter[at : at + size].clone().view(leaf.dtype).view(leaf.shape)
            at += size
            return made

        found: list[Any] = map_leaves(filled, pickle.loads(self.described), objects=True)
        return found


class NotSent:
    """In place of something in a step's result that is not the same on all ranks."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __getitem__(self, key: Any) -> Any:
        self._refuse()

    def __iter__(self) -> Any:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused."""
        self._refuse()

    def __repr__(self) -> str:
        return f"NotSent({vars(self)['_kind']!r})"

    def _refuse(self) -> NoReturn:
        raise PipelineError(
            f"the step function returned a {vars(self)['_kind']}, which cannot be sent to other ranks",
            hint="return tensors; each stage has only its own part of a cache (use_cache=False, or model.generate())",
        )


class _Finder(pickle.Pickler):
    """Finds objects that keep tensors to themselves."""

    def reducer_override(self, found: Any) -> Any:
        """Refuses tensors."""
        if isinstance(found, torch.Tensor):
            raise pickle.PicklingError("a tensor")
        return NotImplemented


def _portable(leaf: Any) -> Any:
    if isinstance(leaf, (torch.Tensor, str, int, float, bool, type(None), NotSent)):
        return leaf
    return leaf if _pickles(leaf) else NotSent(type(leaf).__name__)


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:
        return None


def _pickles(value: Any) -> bool:
    """Whether it can be sent, and has no tensors in it."""
    try:
        _Finder(io.BytesIO()).dump(value)
    except Exception:
        return False
    return True
