"""Side effects of a forward: planning and recording must leave none of it behind.

Buffers (their values, and which tensor is the buffer), the random generators of torch, Python and numpy, tensors in
attributes, and in containers and objects in attributes, that are changed in place or put there anew (`contents`), and what
its Python code notes (`notes`). What a model makes once and keeps (a mask, a table of angles) stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..ground.torch_private import buffers_in, version_of
from . import host_rng as dice
from . import notes, rng
from .contents import Where, contents_of
from .held import held_tensors


class Surroundings:
    """A snapshot; `restore` puts it back.

    Args:
        function: the step function.
        buffers: whether the forward may change buffers.
    """

    def __init__(
        self, root: nn.Module, device: torch.device, function: notes.Function = None, *, buffers: bool = True
    ) -> None:
        self._root, self._device, self._function = root, device, function
        self._noted = notes.hold(root, function)
        self._random, self._dice = rng.get_state(device), dice.get_state()
        self._buffers: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
        if buffers:
            for module in root.modules():
                for name, buffer in buffers_in(module).items():
                    if buffer is not None:
                        self._buffers.append((buffers_in(module), name, buffer, buffer.clone()))
        self._contents = contents_of(root)
        self._empty = empty_buffers(root)
        seen = (buffer for _, _, buffer, _ in self._buffers)
        self._versions = {id(one): version_of(one) for one in seen if not one.is_inference()}
        self._held = [(value, version_of(value), value.clone()) for *_, value in held_tensors(root)]

    def restore(self) -> set[Where]:
        """As it was; where tensors were put anew, or changed."""
        anew = {
            (id(holder), name)
            for holder, name, buffer, _ in self._buffers
            if holder.get(name) is not buffer or _changed(buffer, self._versions)
        }
        for holder, name in self._empty:
            now = holder.get(name)
            if now is not None and now.grad_fn is not None:
                holder[name] = None
                anew.add((id(holder), name))
        of_buffers = {where for where, _ in anew}
        for one in self._contents:
            found = one.restore()
            if found or (one.module is not None and id(buffers_in(one.module)) in of_buffers):
                one.put_back_switches()
            anew |= found
        rng.set_state(self._random, self._device)
        dice.set_state(self._dice)
        with torch.no_grad():
            for holder, name, buffer, before in self._buffers:
                if buffer.shape == before.shape:
                    buffer.copy_(before)
                    holder[name] = buffer
            for tensor, version, before in self._held:
                if version_of(tensor) != version and tensor.shape == before.shape and not tensor.requires_grad:
                    tensor.copy_(before)
        notes.put(self._root, self._noted, self._function)
        return anew


def _changed(tensor: torch.Tensor, versions: dict[int, int]) -> bool:
    return id(tensor) in versions and version_of(tensor) != versions[id(tensor)]


def empty_buffers(root: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Buffers that are registered and have no value yet: what holds each, and its name there."""
    return [
        (buffers_in(module), name)
        for module in root.modules()
        for name, buffer in buffers_in(module).items()
        if buffer is None
    ]
