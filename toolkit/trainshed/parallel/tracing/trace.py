"""The record of one forward: the recorded events, their values, and where a pipeline may be cut.

A *unit* is a module that is never split. The calls of units are numbered in the order of execution (a module that is
called again has another number); this number is a *position*, and a pipeline stage is a range of positions. What runs
between two unit calls (*glue*) belongs to the position before it. What depends on nothing but the step's inputs and
constants (masks, position numbers) is *replicated*: every stage computes it, and it is never sent.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from ..ground.tree import Stand, leaves
from . import held
from .side_outputs import Place


@dataclass(frozen=True)
class Meta:
    """Shape (elements), stride (elements), type of a value, and whether it takes part in the backward."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Meta:
        """The facts of `tensor`; tensors without strides (inside vmap, sparse) are described as contiguous."""
        shape = tuple(tensor.shape)
        try:
            stride = tuple(tensor.stride())
        except RuntimeError:
            stride = tuple(torch.empty(shape, device="meta").stride())
        return Meta(shape, stride, tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device | str = "meta") -> torch.Tensor:
        """A tensor like it, without values."""
        return torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device=device, requires_grad=self.requires_grad
        )

    def memory_order(self) -> tuple[int, ...]:
        """Its dimensions in the order in which they lie in memory; as they are where it does not fill its memory.

        Sent in this order a tensor arrives with the strides that it has in one process. With others the kernels of a matrix
        product add in another order, and the last bits differ.
        """
        order = tuple(sorted(range(len(self.shape)), key=lambda dim: (-self.stride[dim], dim)))
        filled = torch.empty_strided(self.shape, self.stride, device="meta").permute(order).is_contiguous()
        return order if filled else tuple(range(len(self.shape)))

    @property
    def bytes(self) -> int:
        """Size when sent."""
        count = 1
        for length in self.shape:
            count *= length
        return count * self.dtype.itemsize


class Slot(Stand):
    """A leaf of an event's result. No dataclass: `tree` would walk into it.

    kind: "value" (number of the value), "own" (name of a parameter or buffer), "argument" (index among the tensor
        arguments), "leaf" (index among all leaves of the arguments), "holder" (index among the lists, mappings and objects
        in the arguments), "kept" (key of what the holder had before), "constant" (the thing itself) or "opaque" (name of a
        type that cannot be copied).
    """

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: Any = None) -> None:
        self.kind = kind
        self.value = value


@dataclass
class Event:
    """One unit call or one operation between units.

    inputs: numbers of the tracked values it reads, in the order of its arguments.
    mutated: (index among its tensor arguments, number of the value after the change).
    parameters: names of the parameters that it reads.
    random, draws: whether it takes numbers from torch's generators; from Python's or numpy's.
    changes: names of the buffers that it changes.
    left: places where the unit leaves values sideways, with their structure of slots.
    refilled: (index among the lists, mappings and objects in its arguments, what it holds afterwards: slots by key).
    holders: whether it changes one of those, or returns it.
    swapped: (module inside, dictionary of it, key) of the computed tensors that the unit has in place of its own.
    counts: (what several modules can reach, how much the unit adds to it).
    taken: places in the unit where it finds values of this forward.
    """

    name: str
    is_unit: bool
    position: int
    replicated: bool
    inputs: tuple[int, ...]
    mutated: tuple[tuple[int, int], ...] = ()
    result: Any = None
    parameters: tuple[str, ...] = ()
    random: bool = False
    draws: bool = False
    changes: tuple[str, ...] = ()
    left: tuple[tuple[Place, Any], ...] = ()
    refilled: tuple[tuple[int, dict[Any, Any]], ...] = ()
    holders: bool = False
    swapped: tuple[tuple[str, str, str], ...] = ()
    counts: tuple[tuple[tuple[str, str], int], ...] = ()
    taken: tuple[Place, ...] = ()
    seconds_forward: float = 0.0
    seconds_backward: float = 0.0
    saved_bytes: int = 0

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Leaves of the result; to be asked when it is recorded."""
        return tuple(leaves(self.result, objects=True))

    @cached_property
    def plain(self) -> bool:
        """Tells whether it does nothing else than to make values of its arguments; to be asked when it is recorded."""
        more = (self.mutated, self.left, self.refilled, self.holders, self.swapped, self.counts, self.taken, self.draws)
        return not any(more)

    @cached_property
    def sole(self) -> int | None:
        """Number of the value that is its whole result; to be asked when it is recorded."""
        alone = isinstance(self.result, Slot) and self.result.kind == "value"
        return self.result.value if alone else None


@dataclass(frozen=True)
class Value:
    """A tracked tensor: where it is made, and whether later events change it in place."""

    position: int
    replicated: bool
    meta: Meta


@dataclass(frozen=True)
class Decided:
    """The parts of a `Trace` that may be others where values are others."""

    has_backward: bool
    reads: bool
    reached: frozenset[str]
    last_use: dict[int, int]
    no_cut: dict[int, str]


@dataclass
class Trace:
    """A recorded forward.

    atomic: modules that must not be opened, with the reason: the plan has to be made again with them as units.
    no_cut: position -> reason why no stage may start there.
    tail: index of the first event after the last unit.
    free_from: index of the first event from which the last stage runs without being compared with the record.
    decided_from: index of the first event that may depend on a decision by values that not all stages have.
    reentrant: whether reentrant activation checkpoints run between the units.
    reads: whether values that not all stages have decide anything.
    reached: parameters that the backward of the recorded losses reaches.
    output: structure of what the step function returned, with value numbers as `Slot`s.
    asks: whether values that every stage has decide what comes next: another microbatch may go another way, of which it
        needs a record of its own.
    draws: whether the forward takes numbers from Python's or numpy's generators.
    counters: (module, attribute) of what the forward notes.
    tallies: those of them that code between the units changes; a stage goes on to the end of the forward for their sake.
    kept: tensors in attributes that code between units changes on every stage; kept_to: index of the last event that does.
    remembers: whether it changes tensors in attributes or buffers, which the next forward finds.
    steady: whether the forward gave the same when it ran again.
    paths: for each of `calls` the name by which the module was called, which may have several.
    buffers: each buffer that the forward changes -> position of the last change.
    anew: those of them that the forward assigns between the units.
    entries: how often the step function calls the whole model.
    """

    units: tuple[str, ...]
    events: list[Event] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    atomic: dict[str, str] = field(default_factory=dict)
    no_cut: dict[int, str] = field(default_factory=dict)
    last_use: dict[int, int] = field(default_factory=dict)
    mutated_values: set[int] = field(default_factory=set)
    tail: int = 0
    free_from: int = 0
    decided_from: int = 0
    reached: frozenset[str] = frozenset()
    output: Any = None
    has_backward: bool = False
    reads: bool = False
    reentrant: bool = False
    mutates_inputs: bool = False
    asks: bool = False
    draws: bool = False
    counters: frozenset[tuple[str, str]] = frozenset()
    tallies: frozenset[tuple[str, str]] = frozenset()
    kept: frozenset[held.Place] = frozenset()
    kept_to: int = -1
    remembers: bool = False
    steady: bool = True
    buffers: dict[str, int] = field(default_factory=dict)
    anew: tuple[str, ...] = ()
    entries: int = 0

    @property
    def positions(self) -> int:
        """Number of unit calls."""
        return len(self.calls)

    @cached_property
    def random(self) -> bool:
        """Tells whether the forward draws random numbers; to be asked when it is recorded."""
        return any(event.random for event in self.events)

    @property
    def common(self) -> frozenset[tuple[str, str]]:
        """Counters that belong to no module alone."""
        return frozenset(key for key in self.counters if not key[0])

    @cached_property
    def counts(self) -> bool:
        """Tells whether units add to what several modules can reach; to be asked when it is recorded."""
        return any(event.counts for event in self.events)

    @cached_property
    def drawing(self) -> tuple[int, ...]:
        """Indices of the events that take numbers from Python's or numpy's generators."""
        return tuple(index for index, event in enumerate(self.events) if event.draws)

    @cached_property
    def uses_functions(self) -> bool:
        """Tells whether autograd functions are used between the units."""
        return self.reentrant or any(event.name.endswith(".apply") for event in self.events if not event.is_unit)

    @cached_property
    def structure(self) -> tuple[Any, ...]:
        """The structure that records of one forward share for inputs of other shapes; to be asked when it is recorded."""
        events = [
            (
                *(e.name, e.position, e.replicated, e.inputs, e.mutated, e.parameters, e.random, e.draws, e.changes),
                *(slot.kind for slot in e.slots),
                *(place for place, _ in e.left),
            )
            for e in self.events
        ]
        facts = (self.no_cut, self.free_from, self.decided_from, self.reached, self.asks, self.draws)
        return (self.units, events, self.calls, facts, self.counters, self.buffers, self.mutates_inputs)

    def decided(self) -> Decided:
        """Returns what values have decided in this record."""
        return Decided(self.has_backward, self.reads, self.reached, self.last_use, self.no_cut)

    def decide(self, decided: Decided) -> None:
        """Takes over what values have decided in a record of the same forward on another rank."""
        self.has_backward, self.reads, self.reached = decided.has_backward, decided.reads, decided.reached
        self.last_use, self.no_cut = dict(decided.last_use), dict(decided.no_cut)

    def given_bytes(self, event: Event) -> int:
        """Bytes of the values that an event reads."""
        return sum(self.values[number].meta.bytes for number in set(event.inputs))

    def boundary(self, cut: int) -> tuple[int, ...]:
        """Numbers of the values that cross from the stage before position `cut` to the one that starts there."""
        return tuple(
            number
            for number, value in sorted(self.values.items())
            if not value.replicated and value.position < cut <= self.last_use.get(number, -1)
        )

    def boundary_bytes(self) -> list[int]:
        """Bytes alive at each possible cut, index = position at which the next stage would start."""
        change = [0] * (self.positions + 2)  # from the cut before
        for number, value in self.values.items():
            last = self.last_use.get(number, -1)
            if not value.replicated and last > value.position:
                change[value.position + 1] += value.meta.bytes
                change[last + 1] -= value.meta.bytes
        return list(accumulate(change))[:-1]

    def same(self, other: Trace) -> bool:
        """Returns whether both are records of one forward."""

        def facts(trace: Trace) -> Any:
            events = [(e.parameters, e.random, e.draws, e.changes, [place for place, _ in e.left]) for e in trace.events]
            return trace.fingerprint(), trace.reached, trace.counters, trace.buffers, events

        return bool(facts(self) == facts(other))

    def fingerprint(self) -> str:
        """Equal on all ranks that recorded the same forward with inputs of the same shape."""
        digest = hashlib.sha256()
        for event in self.events:
            digest.update(repr((event.name, event.position, event.replicated, event.inputs, event.mutated)).encode())
        for number, value in sorted(self.values.items()):
            digest.update(repr((number, value.position, value.meta)).encode())
        return digest.hexdigest()[:16]
