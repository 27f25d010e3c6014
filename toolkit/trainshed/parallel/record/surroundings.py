"""What a forward changes besides the values that it returns: planning and recording must leave none of it behind.

Buffers (their values, and which tensor is the buffer), the random generators of torch, Python and numpy, and what
modules count or note in attributes: numbers and texts, also in lists, dictionaries and objects of the model's own;
generators; tensors that are changed in place. What a model makes once and keeps (a mask, a table of angles) stays: its
real forwards would otherwise make it again, and differ from what was recorded.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..replay import dice, rng

_PLAIN = (int, float, complex, str, bytes)
_OWN = frozenset(vars(nn.Module()))
# (module, attribute, or attribute.attribute of an object that it holds) -> what it notes
Attributes = dict[tuple[str, str], Any]
_LIBRARIES = ("builtins", "torch", "numpy", "collections", "functools", "itertools", "types", "transformers")


class _OfClass:
    """The module itself has no such attribute: its class has."""


_OF_CLASS = _OfClass()


class _Dice:
    """The state of a generator of the model's own; pickled, for it holds arrays."""

    def __init__(self, state: bytes) -> None:
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Dice) and other.state == self.state

    __hash__ = None  # type: ignore[assignment]


class Surroundings:
    """A snapshot; `restore` puts it back.

    Args:
        buffers: whether the forward may change buffers.
    """

    def __init__(self, root: nn.Module, device: torch.device, *, buffers: bool = True) -> None:
        self._root, self._device = root, device
        self._random, self._dice = rng.get_state(device), dice.get_state()
        self._buffers: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
        if buffers:
            for module in root.modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        self._buffers.append((module._buffers, name, buffer, buffer.clone()))
        self._attributes = attributes(root)
        self._held = [
            (value, value._version, value.clone())
            for module in root.modules()
            for value in module.__dict__.values()
            if type(value) is torch.Tensor and not value.requires_grad and not value.is_inference() and not value.is_meta
        ]

    def restore(self) -> None:
        """As it was."""
        rng.set_state(self._random, self._device)
        dice.set_state(self._dice)
        with torch.no_grad():
            for holder, name, buffer, before in self._buffers:
                if buffer.shape == before.shape:
                    buffer.copy_(before)
                    holder[name] = buffer
            for tensor, version, before in self._held:
                if tensor._version != version and tensor.shape == before.shape and not tensor.requires_grad:
                    tensor.copy_(before)
        put_attributes(self._root, self._attributes)


def attributes(root: nn.Module) -> Attributes:
    """What modules note in attributes, for numbers, texts, containers of them, and generators."""
    found: Attributes = {}
    for module_name, module in root.named_modules():
        for name, value in module.__dict__.items():
            if name in _OWN:
                continue
            _note(found, (module_name, name), value)
            if _is_own(value):
                for inner, part in vars(value).items():
                    _note(found, (module_name, f"{name}.{inner}"), part)
        for name in _defaults(type(module)):
            if name not in module.__dict__:
                found[module_name, name] = _OF_CLASS
    return found


def _note(found: Attributes, key: tuple[str, str], value: Any) -> None:
    if isinstance(value, bool):
        return
    if isinstance(value, _PLAIN):
        found[key] = value
    elif isinstance(value, (list, deque, set, dict)) and _is_plain(value):
        found[key] = value.copy()
    elif (state := _rolled(value)) is not None:
        found[key] = _Dice(pickle.dumps(state))


def _is_own(value: Any) -> bool:
    """Whether it is an object of the script's own that notes things, as a configuration does."""
    kind = type(value)
    if isinstance(value, (nn.Module, torch.Tensor, type)) or callable(value) or not hasattr(value, "__dict__"):
        return False
    return kind.__name__ == "SimpleNamespace" or kind.__module__.partition(".")[0] not in _LIBRARIES


def _defaults(kind: type) -> Iterator[str]:
    """Names of the numbers and texts that a module's class gives to all of its kind."""
    for parent in kind.__mro__:
        if parent is nn.Module:
            return
        if not parent.__module__.startswith("torch."):
            for name, value in vars(parent).items():
                if isinstance(value, _PLAIN) and not isinstance(value, bool) and not name.startswith("__"):
                    yield name


def _rolled(value: Any) -> Any:
    """The state of a generator of random numbers; None of anything else."""
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().tolist())  # a pickled tensor is another text each time
    if isinstance(value, random.Random):
        return value.getstate()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return value.get_state()
    return None


def _roll(value: Any, state: Any) -> None:
    """Puts a generator where `_rolled` found it."""
    if isinstance(value, torch.Generator):
        value.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(value, random.Random):
        value.setstate(state)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    else:
        value.set_state(state)


def changed(before: Attributes, after: Attributes) -> frozenset[tuple[str, str]]:
    """What is another number, text or content."""
    return frozenset(key for key, value in after.items() if key in before and not _equal(before[key], value))


def put_attributes(root: nn.Module, noted: Attributes) -> None:
    """Puts back what is still of its kind; containers and generators stay the objects that they are."""
    modules = dict(root.named_modules())
    for (module_name, name), value in noted.items():
        there = modules[module_name].__dict__ if module_name in modules else {}
        holder, _, inner = name.partition(".")
        if inner and name not in there:
            there, name = getattr(there.get(holder), "__dict__", {}), inner
        now: Any = there.get(name)
        if isinstance(value, _OfClass):
            if isinstance(now, _PLAIN):
                del there[name]
        elif isinstance(value, _Dice):
            if (state := _rolled(now)) is not None and pickle.dumps(state) != value.state:
                _roll(now, pickle.loads(value.state))
        elif isinstance(value, _PLAIN):
            if isinstance(now, _PLAIN) and type(now) is type(value) and not _equal(now, value):
                there[name] = value
            elif name not in there and not inner:
                there[name] = value  # it was taken back to the class's own
        elif type(now) is type(value) and not _equal(now, value) and _is_plain(now):
            now.clear()
            now.extend(value) if isinstance(now, (list, deque)) else now.update(value)


def _is_plain(container: Any) -> bool:
    values = [*container, *container.values()] if isinstance(container, dict) else container
    return all(isinstance(value, _PLAIN) or value is None for value in values)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)
