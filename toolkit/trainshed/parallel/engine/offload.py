"""Activations on the CPU between a stage's forward and its backward.

What operations save for their backward goes to pinned memory as soon as it is saved, beside the computation, and comes back
when the backward asks for it: the same bits. Parameters and buffers stay; so do small tensors, whose copies would not be
worth their time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from ..grid import Grid
from ..plan.profile import OFFLOADED
from ..shards import local


class _Away(NamedTuple):
    """A tensor on the CPU.

    there: when the copy is done; None where it is done at once.
    """

    copy: torch.Tensor
    device: torch.device
    there: Any


class Offload:
    """For the stages of one rank.

    Args:
        smallest: bytes of a tensor from which on it goes.
    """

    def __init__(self, root: nn.Module, device: torch.device, smallest: int = OFFLOADED) -> None:
        self._root, self._smallest = root, smallest
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def away(self) -> Iterator[None]:
        """What is saved within the block is kept on the CPU."""
        held = [*self._root.parameters(), *self._root.buffers()]
        with torch._C.DisableTorchFunction(), torch.no_grad():  # also of parameters that are absent
            self._stays = {local(one).untyped_storage().data_ptr() for one in held if not one.is_meta}
        with torch.autograd.graph.saved_tensors_hooks(self._put, self._back):
            yield

    def _put(self, tensor: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction(), torch.no_grad():  # a copy is no part of the forward that is followed
            return self._kept(tensor)

    def _kept(self, tensor: torch.Tensor) -> Any:
        plain = tensor.layout is torch.strided and not tensor.is_meta and type(tensor) in (torch.Tensor, nn.Parameter)
        if not plain or tensor.numel() * tensor.element_size() < self._smallest:
            return tensor
        if tensor.untyped_storage().data_ptr() in self._stays:
            return tensor
        if self._stream is None:
            return _Away(tensor.detach().clone(), tensor.device, None)
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            copy.copy_(tensor.detach(), non_blocking=True)
            there = self._stream.record_event()
        tensor.record_stream(self._stream)  # its memory is not given to others before it is read
        return _Away(copy, tensor.device, there)

    def _back(self, kept: Any) -> torch.Tensor:
        if not isinstance(kept, _Away):
            found: torch.Tensor = kept
            return found
        if kept.there is None:
            return kept.copy
        torch.cuda.current_stream(kept.device).wait_event(kept.there)
        return kept.copy.to(kept.device, non_blocking=True)


def say_of_states(grid: Grid) -> None:
    """Says so where it would change nothing that optimizers keep their states in the CPU's memory."""
    if grid.settings.offload_optimizer_state and grid.device.type == "cpu" and grid.rank == 0:
        print(
            "offload_optimizer_state changes nothing: optimizers have their states in the CPU's memory already", flush=True
        )


def offload_for(root: nn.Module, grid: Grid) -> Offload | None:
    """What keeps the activations of this rank's stages, where a job wants that; None where it would change nothing."""
    if not grid.settings.offload_activations:
        return None
    if grid.device.type == "cpu":
        if grid.rank == 0:
            print("offload_activations changes nothing: activations are in the CPU's memory already", flush=True)
        return None
    return Offload(root, grid.device)
