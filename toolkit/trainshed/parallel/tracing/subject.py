"""A step function with one microbatch of inputs: what is recorded, without changing the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from ..ground.errors import PlanError
from ..ground.torch_private import buffers_in
from ..ground.tree import map_leaves, tensors
from . import host_rng as dice
from .captured_values import OF_EVERY_MODULE
from .contents import Where, contents_of
from .global_effects import Surroundings, empty_buffers
from .recorder import Recorder
from .trace import Trace

# Of the sum of absolute values: what the order of additions may change, also in half precision.
_ROUNDING = 1e-3
_recording = False


def recording() -> bool:
    """Returns whether a forward is being recorded now."""
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
    counts: whether its operations are counted when it is profiled, and not timed.
    """

    root: nn.Module
    function: Callable[..., Any]
    attach: Callable[[Backward | None], None]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: tuple[int, int] | None = None
    counts: bool = False
    _changed: set[Where] = field(default_factory=set, init=False)  # by the last forward
    _anew: set[Where] = field(default_factory=set, init=False)

    def record(self, units: Iterable[str], known: Iterable[Trace] = ()) -> Trace:
        """Records the forward with these units.

        It runs once before, and that does not count: what a forward makes once and keeps (a mask, a table of angles) would
        not happen again in the real forwards. Once is enough where the first time is like a known record.

        Args:
            known: records for inputs of other shapes.
        """
        return self._recorded(frozenset(units), known, again=True)

    def passes(self, units: Iterable[str], kind: Callable[[Trace], Recorder], count: int) -> list[Trace]:
        """Records a forward that has run before, then `count` times more with a kind of recorder that is given the first
        record; the first record alone if parts of the forward must not be opened.

        Raises:
            PlanError: it gives something else each time.
        """
        trace = self._recorded(frozenset(units), (), again=False)
        if trace.atomic:
            return [trace]
        recorders = [kind(trace) for _ in range(count)]
        others = [self._record_once(recorder) for recorder in recorders]
        trace.steady &= all(_alike(recorders[0], other) for other in recorders[1:])
        refuse_unsteady(trace)
        return [trace, *others]

    def _recorded(self, units: frozenset[str], known: Iterable[Trace], *, again: bool) -> Trace:
        """Records once, and `again` or if buffers or counters change a second time, when it is known which ones do."""
        first = Recorder(self.root, units, self.device)
        trace = self._record_once(first)
        if trace.atomic or not (again or trace.buffers or trace.common):
            return trace
        if not (trace.buffers or trace.common) and any(trace.structure == other.structure for other in known):
            return trace
        recorders = [first]
        # The first forward of all may differ: it finds nothing where each one leaves something for the next.
        while len(recorders) < 3 and (len(recorders) == 1 or not trace.steady):
            recorders.append(Recorder(self.root, units, self.device, trace))
            trace = self._record_once(recorders[-1])
            trace.steady = _alike(*recorders[-2:])
        return trace

    def _record_once(self, recorder: Recorder) -> Trace:
        with self.untouched(), self.attached(recorder):
            trace = recorder.record(self.function, *self.inputs())
        trace.remembers = bool(self._changed)
        return trace

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
        before = Surroundings(self.root, self.device, self.function, buffers=buffers)
        if self.seed is not None:
            dice.start(*self.seed)
        try:
            yield
        finally:
            self._changed = before.restore()
            self._anew |= self._changed

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Within the block the forward runs several times.

        Where nothing was, and each time something else was put, there is nothing again at its end: that is what one forward
        leaves for the next one. What another stage's modules have left here, without values, is zeros meanwhile.
        """
        attributes = [
            (module.__dict__, name, value)
            for module in self.root.modules()
            for name, value in module.__dict__.items()
            if name not in OF_EVERY_MODULE
        ]
        before, empty = contents_of(self.root), empty_buffers(self.root)
        hollow = [(own, name, value) for own, name, value in attributes if any(map(self._is_hollow, tensors(value)))]
        for own, name, value in hollow:
            own[name] = map_leaves(lambda leaf: self._zeros(leaf) if self._is_hollow(leaf) else leaf, value)
        try:
            yield
        finally:
            for holder, name in empty:
                if (id(holder), name) in self._anew:
                    holder[name] = None
            emptied = {id(holder) for holder, name in empty if (id(holder), name) in self._anew}
            for one in before:
                one.empty(self._anew)
                if one.module is not None and id(buffers_in(one.module)) in emptied:
                    one.put_back_switches()
            for own, name, value in hollow:
                own[name] = value

    def _is_hollow(self, leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.is_meta and self.device.type != "meta"

    def _zeros(self, leaf: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(leaf, device=self.device).requires_grad_(leaf.requires_grad)


def refuse_unsteady(trace: Trace) -> None:
    """Raises:
    PlanError: the forward gave something else when it ran again.
    """
    if not trace.steady:
        raise PlanError(
            "the forward gives another result when it runs again with the same inputs, parameters and random numbers",
            hint="it reads something that changes and cannot be put back, such as an iterator of a class of its own or a "
            "clock: keep that as a number or a tensor in an attribute of the model, or give it to the step function as an "
            "argument",
        )


def _alike(one: Recorder, other: Recorder) -> bool:
    """Whether two forwards gave the same but for rounding."""
    if len(one.sketch) != len(other.sketch):
        return False
    return all(
        (a == b or math.isnan(a) or math.isnan(b)) or abs(a - b) <= _ROUNDING * max(of_a, of_b)
        for (a, of_a), (b, of_b) in zip(one.sketch, other.sketch, strict=True)
    )


class _Discarding:
    """A backward that leaves no gradients."""

    def __init__(self, root: nn.Module) -> None:
        self._parameters = [parameter for parameter in root.parameters() if parameter.requires_grad]

    def backward(self, losses: list[torch.Tensor]) -> None:
        torch.autograd.grad(losses, self._parameters, allow_unused=True)
