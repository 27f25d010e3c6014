"""Holders of tensors from one forward to the next: attributes of modules and of the script's own objects in them, lists and
dictionaries in those. A snapshot of one of these puts back what a forward that does not count has changed there.

What a forward makes where nothing was (a mask, a table by length, a list that it fills) stays: real forwards would make it
again, and differ from what was recorded. `empty` takes that away where each forward makes it anew. Switches (`started`) go
back with the tensors beside them, for they say what these are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..ground.torch_private import version_of
from ..ground.tree import tensors
from .captured_values import OF_EVERY_MODULE, is_own

# (id of what holds it, key); the key of a list is None.
Where = tuple[int, Any]

_DEEPEST = 3
_NUMBERS = (int, float, complex, str)
_CONTAINERS = (tuple, list, dict, deque)


class Contents:
    """A snapshot of one holder.

    Args:
        holder: a dictionary of attributes, or a container.
        module: whose attributes these are; None of all else.
    """

    def __init__(self, holder: Any, module: nn.Module | None = None) -> None:
        self.holder, self.module = holder, module
        self.named: dict[Any, Any] = {}
        self.listed: list[Any] = []
        if isinstance(holder, dict):
            self.named = {key: one for key, one in holder.items() if module is None or key not in OF_EVERY_MODULE}
        else:
            self.listed = list(holder)
        self._versions = {id(one): version_of(one) for one in self.values() if _is_counted(one)}

    def values(self) -> list[Any]:
        """All that it held."""
        return [*self.named.values(), *self.listed]

    def restore(self) -> set[Where]:
        """As it was; where tensors were put anew, or changed in place."""
        here = id(self.holder)
        anew = {(here, key) for key, was in self.named.items() if self._has_changed(was)}
        anew |= {(here, None) for was in self.listed if self._has_changed(was)}
        return anew | (self._restore_named() if isinstance(self.holder, dict) else self._restore_listed())

    def _has_changed(self, was: Any) -> bool:
        return _is_counted(was) and version_of(was) != self._versions.get(id(was))

    def _restore_named(self) -> set[Where]:
        anew = set()
        for key, was in self.named.items():
            now = self.holder.get(key)
            if now is was:
                continue
            if was is None or isinstance(was, (torch.Tensor, *_CONTAINERS)):
                made, had = _made(now), not _is_nothing(was)
                if (had and (made or now is None)) or _with_graph(made):
                    self.holder[key] = was
                    anew.add((id(self.holder), key))
            elif self.module is None and isinstance(was, _NUMBERS) and type(now) is type(was):
                self.holder[key] = was  # `notes` knows those in modules
        for key in [key for key in self.holder if key not in self.named and key not in OF_EVERY_MODULE]:
            if _with_graph(_made(self.holder[key])):
                del self.holder[key]
                anew.add((id(self.holder), key))
        return anew

    def _restore_listed(self) -> set[Where]:
        now = list(self.holder)
        if list(map(id, now)) == list(map(id, self.listed)):
            return set()
        made = _made(now)
        if not self.listed and made and not _with_graph(made):
            return set()
        if not (self.listed or made or all(isinstance(one, _NUMBERS) for one in now)):
            return set()  # objects that something has collected once
        self._refill()
        return {(id(self.holder), None)} if made or _made(self.listed) else set()

    def _refill(self) -> None:
        self.holder.clear()
        self.holder.extend(self.listed)

    def put_back_switches(self) -> None:
        """Switches as they were."""
        for key, was in self.named.items():
            if isinstance(was, bool) and isinstance(self.holder.get(key), bool):
                self.holder[key] = was

    def empty(self, anew: set[Where]) -> None:
        """Takes away what was not there, and what each forward has put there anew.

        Args:
            anew: as `restore` has told.
        """
        here = id(self.holder)
        if not isinstance(self.holder, dict):
            if not self.listed and (here, None) in anew:
                self._refill()
            return
        fresh = [key for key in self.holder if (here, key) in anew and _is_nothing(self.named.get(key))]
        for key in fresh:
            if key in self.named:
                self.holder[key] = self.named[key]
            else:
                del self.holder[key]
        if fresh:
            self.put_back_switches()

    def reset(self) -> None:
        """Exactly as it was, but for what is changed within tensors."""
        if not isinstance(self.holder, dict):
            self._refill()
            return
        for key in [key for key in self.holder if key not in self.named and key not in OF_EVERY_MODULE]:
            del self.holder[key]
        self.holder.update(self.named)


def contents_of(root: nn.Module) -> list[Contents]:
    """Snapshots of all that holds tensors in a model, or may; each once."""
    seen: set[int] = set()
    return [one for module in root.modules() for one in _within(module.__dict__, module, seen, 0)]


def _within(holder: Any, module: nn.Module | None, seen: set[int], depth: int) -> Iterator[Contents]:
    if id(holder) in seen or depth > _DEEPEST:
        return
    seen.add(id(holder))
    found = Contents(holder, module)
    yield found
    for value in found.values():
        if isinstance(value, (dict, list, deque)):
            yield from _within(value, None, seen, depth + 1)
        elif is_own(value):
            yield from _within(value.__dict__, None, seen, depth + 1)


def _made(value: Any) -> list[torch.Tensor]:
    """The tensors that a value is, or holds."""
    return tensors(value) if isinstance(value, (torch.Tensor, *_CONTAINERS)) else []


def _with_graph(made: list[torch.Tensor]) -> bool:
    return any(one.grad_fn is not None for one in made)


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, _CONTAINERS) and not value)


def _is_counted(value: Any) -> bool:
    """Whether it is a tensor that counts its changes."""
    return isinstance(value, torch.Tensor) and not value.is_inference()
