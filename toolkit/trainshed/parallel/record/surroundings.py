"""What a forward changes besides the values that it returns: planning and recording must leave none of it behind.

Buffers (their values, and which tensor is the buffer), the random generators of torch, Python and numpy, and numbers and
texts that modules count or note in attributes, also in lists and dictionaries. What a model makes once and keeps (a mask, a
table of angles) stays: its real forwards would otherwise make it again, and differ from what was recorded.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import nn

from ..replay import dice, rng

_PLAIN = (int, float, complex, str, bytes)
_OWN = frozenset(vars(nn.Module()))
Attributes = dict[tuple[str, str], Any]


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

    def restore(self) -> None:
        """As it was."""
        rng.set_state(self._random, self._device)
        dice.set_state(self._dice)
        with torch.no_grad():
            for holder, name, buffer, before in self._buffers:
                if buffer.shape == before.shape:
                    buffer.copy_(before)
                    holder[name] = buffer
        put_attributes(self._root, self._attributes)


def attributes(root: nn.Module) -> Attributes:
    """(module, attribute) -> what it notes, for numbers, texts and containers of them."""
    found: Attributes = {}
    for module_name, module in root.named_modules():
        for name, value in module.__dict__.items():
            if name in _OWN or isinstance(value, bool):
                continue
            if isinstance(value, _PLAIN):
                found[module_name, name] = value
            elif isinstance(value, (list, deque, set, dict)) and _is_plain(value):
                found[module_name, name] = value.copy()
    return found


def changed(before: Attributes, after: Attributes) -> frozenset[tuple[str, str]]:
    """What is another number, text or content."""
    return frozenset(key for key, value in after.items() if key in before and not _equal(before[key], value))


def put_attributes(root: nn.Module, noted: Attributes) -> None:
    """Puts back what is still of its kind; containers stay the objects that they are."""
    modules = dict(root.named_modules())
    for (module_name, name), value in noted.items():
        there = modules[module_name].__dict__ if module_name in modules else {}
        now: Any = there.get(name)
        if type(now) is not type(value) or _equal(now, value):
            continue
        if isinstance(value, _PLAIN):
            there[name] = value
        elif _is_plain(now):
            now.clear()
            now.extend(value) if isinstance(now, (list, deque)) else now.update(value)


def _is_plain(container: Any) -> bool:
    values = [*container, *container.values()] if isinstance(container, dict) else container
    return all(isinstance(value, _PLAIN) or value is None for value in values)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)
