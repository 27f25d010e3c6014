"""A step function with one microbatch of inputs: what is recorded, without changing the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from ..replay import dice
from ..tree import map_leaves
from .recorder import Recorder
from .surroundings import Surroundings
from .trace import Trace

_recording = False


def recording() -> bool:
    """Whether a forward is being recorded now."""
    return _recording


class Backward(Protocol):
    """Receives the losses that the step function gives to `model.backward`."""

    def backward(self, losses: list[torch.Tensor]) -> None:
        """`losses` have been multiplied by their gradients."""


@dataclass
class Subject:
    """The user's step function and one microbatch.

    attach: tells the model that the user sees where its `backward` goes.
    seed: from which the generators of Python and numpy start; the step's, and the number of the microbatch.
    """

    root: nn.Module
    function: Callable[..., Any]
    attach: Callable[[Backward | None], None]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: tuple[int, int] | None = None

    def record(self, units: Iterable[str], known: Iterable[Trace] = ()) -> Trace:
        """Records the forward with these units.

        It runs once before, and that does not count: what a forward makes once and keeps (a mask, a table of angles) would
        not happen again in the real forwards. Once is enough where the first time is like a known record.

        Args:
            known: records for inputs of other shapes.
        """
        with self.untouched():
            return self._recorded(frozenset(units), known, again=True)

    def passes(self, units: Iterable[str], kind: Callable[[Trace], Recorder], count: int) -> list[Trace]:
        """Records a forward that has run before, then `count` times more with a kind of recorder that is given the first
        record; the first record alone if parts of the forward must not be opened."""
        with self.untouched():
            trace = self._recorded(frozenset(units), (), again=False)
            if trace.atomic:
                return [trace]
            others = []
            for _ in range(count):
                with self.untouched():
                    others.append(self._record_once(kind(trace)))
            return [trace, *others]

    def _recorded(self, units: frozenset[str], known: Iterable[Trace], *, again: bool) -> Trace:
        """Records once, and `again` or if buffers change a second time, when it is known which ones do."""
        trace = self._record_once(Recorder(self.root, units, self.device))
        if trace.atomic or not (again or trace.buffers):
            return trace
        if not trace.buffers and any(trace.structure == other.structure for other in known):
            return trace
        with self.untouched():
            return self._record_once(Recorder(self.root, units, self.device, frozenset(trace.buffers)))

    def _record_once(self, recorder: Recorder) -> Trace:
        with self.attached(recorder):
            return recorder.record(self.function, *self.inputs())

    def exercise(self) -> None:
        """Runs one forward and backward and discards the results."""
        with self.untouched(), self.attached(_Discarding(self.root)):
            args, kwargs = self.inputs()
            self.function(*args, **kwargs)

    @contextmanager
    def attached(self, handler: Backward) -> Iterator[None]:
        """Within the block a forward is no training step, and its `backward` goes to the handler."""
        global _recording
        self.attach(handler)
        _recording = True
        try:
            yield
        finally:
            _recording = False
            self.attach(None)

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A copy of the microbatch, which the step function may change."""

        def copy(leaf: Any) -> Any:
            return leaf.detach().clone() if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter) else leaf

        return map_leaves(copy, self.args), map_leaves(copy, self.kwargs)

    @contextmanager
    def untouched(self, *, buffers: bool = True) -> Iterator[None]:
        """Restores what a forward changes at the end of the block; see `surroundings`.

        Args:
            buffers: whether it may change buffers.
        """
        before = Surroundings(self.root, self.device, buffers=buffers)
        if self.seed is not None:
            dice.start(*self.seed)
        try:
            yield
        finally:
            before.restore()


class _Discarding:
    """A backward that leaves no gradients."""

    def __init__(self, root: nn.Module) -> None:
        self._parameters = [parameter for parameter in root.parameters() if parameter.requires_grad]

    def backward(self, losses: list[torch.Tensor]) -> None:
        torch.autograd.grad(losses, self._parameters, allow_unused=True)
