"""Activations on the CPU between a stage's forward and its backward: those of a whole stage, or of some of its units.

What operations save for their backward goes to pinned memory as soon as it is saved, beside the computation, and comes back
when the backward asks for it: the same bits. Parameters and buffers stay; so do small tensors, whose copies would not be
worth their time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from ..ground.grid import Grid
from ..ground.shards import local

SMALLEST = 2**20
_PROBE = 64 * 2**20


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
        everything: whether all of a stage's units keep theirs on the CPU.
    """

    def __init__(self, root: nn.Module, device: torch.device, *, smallest: int = SMALLEST, everything: bool = True) -> None:
        self._root, self._device, self.smallest, self.everything = root, device, smallest, everything
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._stays: set[int] = set()
        self._rate = 0.0

    @contextmanager
    def away(self) -> Iterator[None]:
        """Keeps on the CPU what a stage's forward saves within the block; or only what units do that `run` calls."""
        held = [*self._root.parameters(), *self._root.buffers()]
        with torch.DisableTorchFunction(), torch.no_grad():  # also of parameters that are absent
            self._stays = {local(one).untyped_storage().data_ptr() for one in held if not one.is_meta}
        with self._hooks() if self.everything else nullcontext():
            yield

    def run(self, native: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a unit, whose operations keep what they save on the CPU."""
        with self._hooks():
            return native(*args, **kwargs)

    def rate(self) -> float:
        """Bytes a second that go or come back, measured once."""
        if not self._rate:
            probe = torch.zeros(max(_PROBE, self.smallest), dtype=torch.uint8, device=self._device)
            seconds = []
            for _ in range(3):
                started = time.perf_counter()
                self._back(self._kept(probe))
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                seconds.append((time.perf_counter() - started) / 2)
            self._rate = probe.numel() / max(min(seconds[1:]), 1e-9)
        return self._rate

    def _hooks(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self._put, self._back)

    def _put(self, tensor: torch.Tensor) -> Any:
        with torch.DisableTorchFunction(), torch.no_grad():  # a copy is no part of the forward that is followed
            return self._kept(tensor)

    def _kept(self, tensor: torch.Tensor) -> Any:
        plain = tensor.layout is torch.strided and not tensor.is_meta and type(tensor) in (torch.Tensor, nn.Parameter)
        if not plain or tensor.numel() * tensor.element_size() < self.smallest:
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
    """Returns what keeps the activations of this rank's stages, where a job wants that; None if it would change nothing."""
    wanted = grid.settings.offload_activations
    if wanted == "off":
        return None
    if grid.device.type == "cpu":
        if grid.rank == 0:
            print("offload_activations changes nothing: activations are in the CPU's memory already", flush=True)
        return None
    return Offload(root, grid.device, everything=wanted == "all")
