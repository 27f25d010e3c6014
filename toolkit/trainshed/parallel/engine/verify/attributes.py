"""Collects what modules of other ranks keep in attributes, on the first rank of a pipeline, to run the undivided
model with it: tensors, numbers, switches, generators, and containers and objects of these.

A module changes its attributes on the rank that runs it. What code between modules changes, the last rank has, which runs
all of that code; where it has a stand-in, a rank before it. Ranks tell each other digests; what is other than on the first
rank is sent there.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...tracing.captured_values import OF_EVERY_MODULE, is_own
from ...tracing.iteration import Iteration
from ...tracing.notes import roll, rolled
from ..checking import gathered
from ..holding import Holding
from ..object_collectives import ATTRIBUTES, numbers
from .tensor_digest import sketch

Key = tuple[str, str]  # module, attribute
Digests = dict[Key, bytes]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_DEEPEST = 8


class _Unknown(Exception):
    """It holds something that cannot be sent."""


class _Hollow(Exception):
    """It holds what stands for a value of another rank."""


class Attributes:
    """The values that other ranks of a pipeline keep in attributes, on its first rank; nothing on the others."""

    def __init__(self, holding: Holding) -> None:
        self._root, self._device = holding.root, holding.grid.device
        self._packed = _sent(holding)

    @contextmanager
    def there(self) -> Iterator[None]:
        """Within this context modules have it, afresh each time; afterwards what they had before."""
        undo: list[Callable[[], None]] = []
        modules = dict(self._root.named_modules(remove_duplicate=False))
        try:
            for packed in self._packed:
                reader = _Reader(self._root, self._device, undo)
                for (where, name), kept in reader.read(packed).items():
                    if where in modules:
                        reader.put(modules[where].__dict__, name, kept)
            yield
        finally:
            for one in reversed(undo):
                one()


def _sent(holding: Holding) -> list[bytes]:
    """What each other rank has sent to the first one. Collective over the pipeline."""
    grid = holding.grid
    if len(grid.pipeline_ranks) == 1:
        return []
    here = grid.place.pipeline
    found = gathered(grid, ATTRIBUTES, _digests(holding))
    mine = {
        key for key in found[here] if here and _sender(holding, key, found) == here and found[here][key] != found[0].get(key)
    }
    packed = _packed(holding, mine) if mine else b""
    first, group, device = grid.pipeline_ranks[0], grid.pipeline_group, grid.device
    lengths = [length for length, *_ in numbers(ATTRIBUTES, [len(packed)], grid.pipeline_ranks, group, device)]
    if packed:
        dist.send(torch.frombuffer(bytearray(packed), dtype=torch.uint8).to(device), first, group=group)
    got = []
    for rank, length in zip(grid.pipeline_ranks, lengths, strict=True):
        if length and not here:
            room = torch.empty(length, dtype=torch.uint8, device=device)
            dist.recv(room, rank, group=group)
            got.append(room.cpu().numpy().tobytes())
    return got


def _sender(holding: Holding, key: Key, found: list[Digests]) -> int:
    """The rank of the pipeline whose attribute counts."""
    home = holding.home_of(key[0])
    if home is not None:
        return home
    return next((rank for rank in range(len(found) - 1, 0, -1) if key in found[rank]), 0)


def _digests(holding: Holding) -> Digests:
    """Of every attribute here that can be sent; without those of modules of other ranks, but for the first rank's."""
    here, root = holding.grid.place.pipeline, holding.root
    own = _named(root)
    found = {}
    for where, module in root.named_modules():
        if here and holding.home_of(where) not in (None, here):
            continue
        for name in list(module.__dict__):
            if name in OF_EVERY_MODULE:
                continue
            try:
                found[where, name] = _Writer(own, holding.grid.device).digest(module.__dict__[name])
            except (_Unknown, _Hollow):
                continue
    return found


def _packed(holding: Holding, keys: set[Key]) -> bytes:
    """These attributes, for `_Reader`."""
    root = holding.root
    writer = _Writer(_named(root), holding.grid.device)
    kept = {(where, name): writer.mark(vars(root.get_submodule(where))[name]) for where, name in sorted(keys)}
    stream = io.BytesIO()
    torch.save([tensor.detach().cpu() for tensor in writer.tensors], stream)
    return pickle.dumps((kept, stream.getvalue()))


def _named(root: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, under all of their names."""
    return {**dict(root.named_parameters(remove_duplicate=False)), **dict(root.named_buffers(remove_duplicate=False))}


class _Mark:
    """What stands for something else in what is sent: kind, and what is needed to find or make it."""

    def __init__(self, kind: str, value: Any) -> None:
        self.kind, self.value = kind, value

    def __reduce__(self) -> Any:
        return _Mark, (self.kind, self.value)


class _Writer:
    """Writes attributes; a tensor that has several names keeps them.

    Args:
        own: parameters and buffers by name.

    tensors: all others in what was written.
    """

    def __init__(self, own: dict[str, torch.Tensor], device: torch.device) -> None:
        self._own, self._device = own, device
        self._names: dict[int, str] = {}
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}
        self._within: list[int] = []

    def digest(self, value: Any) -> bytes:
        """Equal for equal values."""
        marked = pickle.dumps(self.mark(value))
        facts = repr([(tuple(one.shape), one.dtype, sketch(one)) for one in self.tensors])
        return hashlib.sha256(marked + facts.encode()).digest()

    def mark(self, value: Any) -> Any:
        """What is sent for a value.

        Raises:
            _Unknown, _Hollow: it cannot be sent.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, Iteration):
            return _Mark("position", value.at)
        if (state := rolled(value)) is not None:
            return _Mark("generator", state)
        if id(value) in self._within or len(self._within) > _DEEPEST:
            raise _Unknown
        self._within.append(id(value))
        try:
            if type(value) in (list, tuple, deque):
                return _Mark(type(value).__name__, [self.mark(one) for one in value])
            if type(value) is set and all(isinstance(one, _PLAIN) for one in value):
                return _Mark("set", sorted(value, key=repr))
            if isinstance(value, dict) and all(isinstance(key, (*_PLAIN, tuple)) for key in value):
                return _Mark("dict", [(key, self.mark(one)) for key, one in value.items()])
            if is_own(value):
                return _Mark("object", list(self._parts(value.__dict__)))
        finally:
            self._within.pop()
        raise _Unknown

    def _parts(self, there: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Of an object, without those that cannot be sent."""
        for name, value in there.items():
            try:
                yield name, self.mark(value)
            except _Unknown:
                continue

    def _tensor(self, value: torch.Tensor) -> _Mark:
        self._names = self._names or {id(tensor): name for name, tensor in self._own.items()}
        if id(value) in self._names:
            return _Mark("own", self._names[id(value)])
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_quantized:
            raise _Unknown
        if value.is_meta and self._device.type != "meta":
            raise _Hollow
        number = self._numbers.setdefault(id(value), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(value)
        return _Mark("tensor", number)


class _Reader:
    """Puts what another rank has written where it belongs. Containers and objects stay those that are there.

    Args:
        undo: gets what puts everything back.
    """

    def __init__(self, root: nn.Module, device: torch.device, undo: list[Callable[[], None]]) -> None:
        self._own = _named(root)
        self._device, self._undo = device, undo
        self._tensors: list[torch.Tensor] = []

    def read(self, packed: bytes) -> dict[Key, Any]:
        """The attributes, to be `put`."""
        kept, tensors = pickle.loads(packed)
        with torch.inference_mode(False):
            self._tensors = [one.to(self._device) for one in torch.load(io.BytesIO(tensors), weights_only=True)]
        found: dict[Key, Any] = kept
        return found

    def put(self, there: MutableMapping[str, Any], name: str, kept: Any) -> None:
        """Into an attribute."""
        before = there.get(name, _MISSING)
        value = self._made(kept, before)
        if value is before:
            return
        there[name] = value
        self._undo.append(partial(there.pop, name, None) if before is _MISSING else partial(there.__setitem__, name, before))

    def _made(self, kept: Any, now: Any) -> Any:
        if not isinstance(kept, _Mark):
            return kept
        if kept.kind == "tensor":
            return self._tensors[kept.value]
        if kept.kind == "own":
            return self._own.get(kept.value, now)
        if kept.kind == "position":
            if isinstance(now, Iteration):
                self._undo.append(partial(setattr, now, "at", now.at))
                now.at = kept.value
            return now
        if kept.kind == "generator":
            if (state := rolled(now)) is not None:
                self._undo.append(partial(roll, now, state))
                roll(now, kept.value)
            return now
        if kept.kind == "tuple":
            parts = now if isinstance(now, tuple) and len(now) == len(kept.value) else [None] * len(kept.value)
            return tuple(self._made(one, part) for one, part in zip(kept.value, parts, strict=True))
        if kept.kind == "object":
            for name, one in kept.value if is_own(now) else ():
                self.put(now.__dict__, name, one)
            return now
        return self._filled(kept, now)

    def _filled(self, kept: _Mark, now: Any) -> Any:
        """A list, deque, set or dictionary with this content."""
        kinds: dict[str, type] = {"list": list, "deque": deque, "set": set, "dict": dict}
        kind = kinds[kept.kind]
        held: Any = now if isinstance(now, kind) else kind()
        before = held.copy()
        if isinstance(held, dict):
            content: Any = {key: self._made(one, held.get(key)) for key, one in kept.value}
        elif isinstance(held, set):
            content = kept.value
        else:
            parts = [*held, *[None] * len(kept.value)]
            content = [self._made(one, part) for one, part in zip(kept.value, parts, strict=False)]
        self._undo.append(partial(_refill, held, before))
        _refill(held, content)
        return held


def _refill(held: Any, content: Any) -> None:
    held.clear()
    held.extend(content) if isinstance(held, (list, deque)) else held.update(content)


_MISSING: Any = object()
