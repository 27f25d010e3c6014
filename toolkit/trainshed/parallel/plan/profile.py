"""Measures what each recorded event costs: seconds forward and backward, bytes kept for the backward.

Everything is measured where it happens: the forward of an event as it comes in the step, with the caches as the events
before have left them, and its backward on the graph that it has just made, from its outputs to its inputs and parameters,
with the addition to a gradient that is already there. Nothing runs by itself on copies, so modules that carry objects along
(a cache of keys) are measured like all others. `profile` does that several times and takes the median.

While an event is measured its inputs have no history, so that its graph ends where it starts: autograd looks at all of a
graph before it runs a part, and the last of a thousand layers would cost a thousand times as much as the first.

On the meta device nothing can be timed, and on request nothing is: floating point operations are counted then, and turned
into seconds with `SECONDS_PER_OPERATION`, which keeps the proportions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.flop_counter import FlopCounterMode

from ..ground.torch_private import parameters_in
from ..ground.tree import map_leaves, tensors
from ..tracing import rng
from ..tracing.recorder import Recorder
from ..tracing.subject import Subject
from ..tracing.trace import Event, Trace

SECONDS_PER_OPERATION = 1e-13
SECONDS_PER_BYTE = 1e-12
PASSES = 3
# More units than these are measured once and briefly: the errors of single ones vanish in the sum of a stage.
_MANY = 300
# The backward of operations faster than this is taken as twice the forward; seconds.
_WORTH = 5e-5
Source = torch.Tensor | GradientEdge


def profile(subject: Subject, units: Iterable[str], passes: int = PASSES) -> Trace:
    """A recorded forward with the median costs of several passes; it has run before.

    The least would be too low: ranks disturb each other in training as well.
    """
    units = frozenset(units)
    brief = len(units) > _MANY
    counts = subject.counts or subject.device.type == "meta"
    count = 1 if brief or counts else passes
    first, *measured = subject.passes(
        units, lambda trace: Profiler(subject.root, units, subject.device, trace, brief=brief, counts=counts), count
    )
    alike = [trace for trace in measured if [e.name for e in trace.events] == [e.name for e in first.events]]
    if measured and not alike:  # it goes another way each time
        return measured[0]
    for number, event in enumerate(first.events if alike else ()):
        event.seconds_forward = median(trace.events[number].seconds_forward for trace in alike)
        event.seconds_backward = median(trace.events[number].seconds_backward for trace in alike)
        event.saved_bytes = alike[0].events[number].saved_bytes
    return first


class Profiler(Recorder):
    """A recorder that also measures.

    Args:
        structure: what was recorded before.
        brief: whether each backward runs once only, with gradients that are in the cache.
        counts: whether operations are counted, and not timed.
    """

    def __init__(
        self,
        root: torch.nn.Module,
        units: Iterable[str],
        device: torch.device,
        structure: Trace,
        *,
        brief: bool,
        counts: bool,
    ) -> None:
        super().__init__(root, units, device, structure)
        self._structure, self._brief, self._counts = structure, brief, counts
        self._anchor = torch.ones(1, device=device, requires_grad=True)

    def _run(self, event: Event, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._counts:
            return _count(event, function, args, kwargs)
        given = {id(tensor): tensor for tensor in tensors((args, kwargs)) if tensor.grad_fn is not None}
        if not given or not self._only_reads(event):
            return self._measure(event, function, args, kwargs)
        short = {key: _Start.apply(tensor.data, self._anchor) for key, tensor in given.items()}
        args, kwargs = (map_leaves(lambda leaf: short.get(id(leaf), leaf), part) for part in (args, kwargs))
        result = self._measure(event, function, args, kwargs)
        whole = {id(tensor): given[key] for key, tensor in short.items()}
        if not any(id(tensor) in whole for tensor in tensors(result)):
            return result
        return map_leaves(lambda leaf: whole.get(id(leaf), leaf), result)

    def _only_reads(self, event: Event) -> bool:
        """Whether it is known to change none of its arguments, which would then miss that in their history."""
        known = self._structure.events
        at = len(self.trace.events)
        return at < len(known) and known[at].name == event.name and not (known[at].mutated or known[at].holders)

    def _measure(self, event: Event, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own: list[torch.Tensor] = []
        with _aliases(function) if isinstance(function, torch.nn.Module) else nullcontext(own) as own:
            before = _sources([*tensors((args, kwargs), objects=True), *own])
            saved = _Saved(own)
            started = self._now()
            with torch.autograd.graph.saved_tensors_hooks(saved.keep, saved.give):
                result = function(*args, **kwargs)
            event.seconds_forward = self._now() - started
            event.saved_bytes = saved.bytes
        outputs = [tensor for tensor in tensors(result, objects=True) if tensor.grad_fn is not None]
        if outputs and before:
            event.seconds_backward = 2 * event.seconds_forward
            if event.is_unit or event.seconds_forward > _WORTH:
                self._measure_backward(event, outputs, before)
        saved.forget()
        return result

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _measure_backward(self, event: Event, outputs: list[torch.Tensor], sources: list[Source]) -> None:
        state = rng.get_state(self.device)
        try:
            try:
                event.seconds_backward = self._backward_seconds(outputs, sources)
            except _Beyond:  # an input is made from another input: the way to that one leads through earlier events
                event.seconds_backward = self._backward_seconds(outputs, _independent(sources))
        except _Beyond:  # it reads a parameter of an earlier event without owning it
            return
        except RuntimeError:  # a reentrant checkpoint: its backward is a forward and a backward
            event.seconds_backward = 3 * event.seconds_forward
        finally:
            rng.set_state(state, self.device)

    def _backward_seconds(self, outputs: list[torch.Tensor], sources: list[Source]) -> float:
        ones = [torch.ones_like(tensor) for tensor in outputs]
        kept: list[Any] = []
        if not self._brief:
            kept = self._gradients(outputs, sources, ones)  # also warms caches up; later microbatches add to these
        started = self._now()
        found = self._gradients(outputs, sources, ones)
        for source, old, new in zip(sources, kept or found, found, strict=True):
            if isinstance(source, torch.Tensor) and new is not None:
                old += new
        return max(0.0, self._now() - started - self._call_seconds())

    def _gradients(self, outputs: list[torch.Tensor], sources: list[Any], ones: list[torch.Tensor]) -> list[Any]:
        return list(torch.autograd.grad(outputs, sources, ones, retain_graph=True, allow_unused=True))

    def _call_seconds(self) -> float:
        """What a call of the autograd engine itself takes: the real backward of a stage is one call."""
        if not hasattr(self, "_call"):
            leaf = torch.ones(1, device=self.device, requires_grad=True)
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
                root = leaf * 1
            found = []
            for _ in range(20):
                started = self._now()
                torch.autograd.grad([root], [leaf], [torch.ones_like(root)], retain_graph=True, allow_unused=True)
                found.append(self._now() - started)
            self._call = median(found)
        return self._call


class _Start(torch.autograd.Function):
    """Gives a tensor without history one that begins here; it stays the same tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, _anchor: torch.Tensor) -> torch.Tensor:
        """`tensor`; no view of it, which could not be changed in place."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[None, None]:
        """Never gets here in a measurement."""
        return None, None


class _Beyond(Exception):
    """The backward of an event went on into the events before it."""


@contextmanager
def _aliases(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Within this context a module has parameters of its own over the same memory; gives them.

    A backward to a parameter that an earlier event reads too (tied, or of a module called again) would run through the
    whole model in between.
    """
    scripted = torch.jit.ScriptModule  # has its parameters elsewhere
    before = [(holder, dict(parameters_in(holder))) for holder in module.modules() if not isinstance(holder, scripted)]
    alias: dict[int, torch.nn.Parameter] = {}
    try:
        for holder, parameters in before:
            for name, parameter in parameters.items():
                if isinstance(parameter, torch.nn.Parameter):  # not a tensor that stands for one
                    key = id(parameter)
                    if key not in alias:
                        alias[key] = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
                    parameters_in(holder)[name] = alias[key]
        yield list(alias.values())
    finally:
        for holder, parameters in before:
            parameters_in(holder).update(parameters)


class _Saved:
    """Holds what autograd saves until the event is measured; counts its memory, each storage once, parameters not."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._seen = {id(parameter.untyped_storage()) for parameter in parameters}
        self._held: list[list[torch.Tensor]] = []
        self.bytes = 0

    def keep(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        storage = tensor.untyped_storage()
        if id(storage) not in self._seen:
            self._seen.add(id(storage))
            self.bytes += storage.nbytes()
        self._held.append([tensor])
        return self._held[-1]

    def give(self, held: list[torch.Tensor]) -> torch.Tensor:
        if not held:
            raise _Beyond
        return held[0]

    def forget(self) -> None:
        for held in self._held:
            held.clear()


def _sources(given: list[torch.Tensor]) -> list[Source]:
    """Where the backward of what is made from these tensors ends; edges, since a tensor may be changed in place."""
    found: dict[Any, Source] = {}
    for tensor in given:
        if tensor.requires_grad and tensor.grad_fn is None:
            found[id(tensor)] = tensor
        elif tensor.requires_grad:
            edge = get_gradient_edge(tensor)
            found[(edge.node, edge.output_nr)] = edge
    return list(found.values())


def _independent(sources: list[Source]) -> list[Source]:
    """Without the sources that others are made from."""
    found = [source for source in sources if isinstance(source, GradientEdge)]
    inner: set[Any] = set()
    for source in found:
        waiting = [source.node]
        seen = set(waiting)
        while waiting:
            for following, _ in waiting.pop().next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        inner |= seen - {source.node}
    return [source for source in sources if not (isinstance(source, GradientEdge) and source.node in inner)]


def seconds_to_touch(device: torch.device) -> float:
    """Seconds to read or write a byte in memory: of tensors that no cache holds, into memory that is asked for anew."""
    whole = torch.ones(2**24, device=device)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for part in whole.split(2**18):
            part.clone()  # reads one, writes one
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return median(times) / (2 * whole.numel() * whole.element_size())


def counted_seconds(operations: int, moved: int) -> float:
    """The seconds that operations on floating point numbers and bytes read and written count for."""
    return operations * SECONDS_PER_OPERATION + moved * SECONDS_PER_BYTE


def _count(event: Event, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    counter = FlopCounterMode(display=False)
    own = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    saved = _Saved([*own, *(tensor for tensor in tensors((args, kwargs)) if isinstance(tensor, torch.nn.Parameter))])
    with counter, torch.autograd.graph.saved_tensors_hooks(saved.keep, saved.give):
        result = function(*args, **kwargs)
    saved.forget()
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors((args, kwargs, result)))
    event.seconds_forward = counted_seconds(counter.get_total_flops(), moved)
    differentiable = any(tensor.requires_grad for tensor in tensors(result))
    event.seconds_backward = 2 * event.seconds_forward if differentiable else 0.0
    event.saved_bytes = saved.bytes if differentiable else 0
    return result
