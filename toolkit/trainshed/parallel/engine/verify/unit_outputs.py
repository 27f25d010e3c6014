"""Sketches of what the units of a forward return, by microbatch and call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from ...ground.torch_private import children_in
from ...ground.tree import map_leaves, tensors
from .contributions import Contributions
from .tensor_digest import Sketch, sketch


def _as_it_is(tensor: Any) -> Any:
    return tensor


# (microbatch, unit, number of its call in the microbatch)
Call = tuple[int, str, int]


class Watch:
    """Looks at units where they are called.

    Args:
        noise: how far the results of a unit and of the modules in it are moved, in units of rounding of their types; for
            finding out what rounding does.
        seed: of the noise.
        only: the one microbatch that is looked at; None for all.
        contributions: is told which microbatch's backward runs.

    seen: each call of a unit that has run -> the tensors that it returned; in the order of the calls.
    again: of these, those within a backward, which activation checkpoints make. They end as soon as they have made what the
        backward needs.
    """

    def __init__(
        self, noise: float = 0.0, seed: int = 0, *, only: int | None = None, contributions: Contributions | None = None
    ) -> None:
        self.seen: dict[Call, list[Sketch]] = {}
        self.again: set[Call] = set()
        self._noise = noise
        self._seed = seed
        self._only = only
        self._contributions = contributions
        self._generator: torch.Generator | None = None
        self._microbatch = 0
        self._calls: Counter[str] = Counter()
        self._inside = self._in_backward = False

    def begin(self, microbatch: int) -> None:
        """Before the forward of a microbatch; a stage sees all calls in it, also those that it leaves to others."""
        self._microbatch, self._in_backward = microbatch, False
        self._calls.clear()

    def backward(self, microbatch: int) -> None:
        """Before the backward of a microbatch, or a part of it."""
        self._in_backward = True
        if self._contributions is not None:
            self._contributions.microbatch = microbatch

    def close(self) -> None:
        """After the backward of all microbatches."""
        if self._contributions is not None:
            self._contributions.close()

    def around(self, name: str, native: Callable[..., Any], shown: Callable[[Any], Any] = _as_it_is) -> Callable[..., Any]:
        """Returns what stands for a call of a unit.

        Args:
            shown: gives the whole of a tensor that is in parts.
        """
        if self._inside or self._only not in (None, self._microbatch):
            return native
        call = (self._microbatch, name, self._calls[name])
        self._calls[name] += 1
        if self._in_backward:
            self.again.add(call)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._inside = True
            try:
                with self._moving() if self._noise else nullcontext():
                    result = native(*args, **kwargs)
            finally:
                self._inside = False
            if self._noise:
                result = map_leaves(self._moved, result)
            self.seen[call] = [sketch(shown(tensor)) for tensor in tensors(result) if not tensor.is_meta]
            return result

        return watched

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Within this context results of modules are moved: a unit in float32 may sum in bfloat16 in its Linears."""

        def move(module: nn.Module, _args: Any, result: Any) -> Any:
            return result if children_in(module) else map_leaves(self._moved, result)

        handle = register_module_forward_hook(move)
        try:
            yield
        finally:
            handle.remove()

    def _moved(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        if self._generator is None:
            self._generator = torch.Generator(leaf.device).manual_seed(self._seed)
        drawn = torch.rand(leaf.shape, generator=self._generator, device=leaf.device, dtype=torch.float64)
        factor = 1 + (2 * drawn - 1) * self._noise * torch.finfo(leaf.dtype).eps
        return (leaf * factor).to(leaf.dtype)  # in float64: in a low precision the factor itself would be 1
