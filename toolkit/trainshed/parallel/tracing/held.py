"""Tensors that modules hold besides parameters and buffers: in attributes, and in containers and objects in attributes.

Code between units that changes one from what every stage has (`self.total += x.mean()`) runs on every stage, and so several
times on a rank that has several: each stage then has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import nn

from .captured_values import OF_EVERY_MODULE, is_own

Place = tuple[Any, ...]  # the module's name, the attribute, and the key inside of that


def held_tensors(root: nn.Module) -> Iterator[tuple[Place, MutableMapping[Any, Any] | list[Any], Any, torch.Tensor]]:
    """Place, holder, key and tensor, for those without a graph."""
    for where, module in root.named_modules():
        for name, value in list(module.__dict__.items()):
            if name in OF_EVERY_MODULE:
                continue
            if _is_plain(value):
                yield (where, name), module.__dict__, name, value
                continue
            inner: Any = value.__dict__ if is_own(value) else value
            if isinstance(inner, dict):
                entries: Any = list(inner.items())
            elif isinstance(inner, list):
                entries = list(enumerate(inner))
            else:
                continue
            for key, one in entries:
                if _is_plain(one) and isinstance(key, (str, int)):
                    yield (where, name, key), inner, key, one


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and not value.requires_grad and not value.is_meta and not value.is_inference()


class OfStages:
    """The tensors in some places, for each stage of a rank its own within a step.

    Args:
        places: that code between units changes.
    """

    def __init__(self, root: nn.Module, places: frozenset[Place]) -> None:
        found = held_tensors(root) if places else ()
        self._held = [(place, holder, key, was) for place, holder, key, was in found if place in places]
        self._own: dict[int, list[Any]] = {}
        self._copies: dict[int, list[Any]] = {}

    def turn(self, stage: int) -> None:
        """Before a stage's forward."""
        if not self._held:
            return
        if stage not in self._own:
            copies = {id(was): was.clone() for *_, was in self._held}  # what has two names has them still
            self._own[stage] = self._copies[stage] = [copies[id(was)] for *_, was in self._held]
        for (_, holder, key, _), own in zip(self._held, self._own[stage], strict=True):
            holder[key] = own

    def turned(self, stage: int) -> None:
        """After it."""
        if self._held:
            self._own[stage] = [holder[key] for _, holder, key, _ in self._held]

    def over(self) -> None:
        """After the step: the tensors themselves are as the last stage has left its own."""
        if not self._own:
            return
        last = max(self._own)
        with torch.no_grad():
            for (_, holder, key, was), own, copy in zip(self._held, self._own[last], self._copies[last], strict=True):
                if own is copy:
                    was.copy_(copy)
                    holder[key] = was
                else:
                    holder[key] = own
