"""The cost model: what a range of positions costs as one pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ..ground.errors import PlanError
from ..ground.halves import is_half
from ..tracing.trace import Trace


@dataclass(frozen=True)
class UnitCost:
    """One unit call with the glue after it; seconds per microbatch, bytes.

    path: the name by which it was called, if it has several.
    call: 0 for the unit's first call, 1 for its second ...
    parameters: names of the parameters that it reads.
    least: of `saved`, what is kept where the unit runs again in its backward.
    sent: bytes that a rank of a tensor or context group sends to the others, forward and backward.
    """

    unit: str
    call: int
    forward: float
    backward: float
    saved: int
    parameters: tuple[str, ...]
    path: str = ""
    least: int = 0
    sent: float = 0.0


@dataclass(frozen=True)
class Costs:
    """All that the partitioner needs.

    sizes: parameter -> bytes that it takes with its gradient and optimizer state.
    values, gradients: parameter -> what of that are these.
    crossing: bytes that cross a cut before each position, index 0 unused.
    no_cut: position -> reason.
    everywhere: seconds of replicated work, paid by each stage; around: those of the step function's other code.
    """

    units: tuple[UnitCost, ...]
    sizes: dict[str, int]
    crossing: tuple[int, ...]
    no_cut: dict[int, str]
    everywhere: float = 0.0
    values: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    around: float = 0.0

    @property
    def seconds(self) -> float:
        """Forward and backward of the whole model."""
        return sum(unit.forward + unit.backward for unit in self.units)


# What our own code and torch's schedule take of a core for one microbatch of a stage, seconds forward and backward.
OVERHEAD = (2e-4, 1e-4)
# Gradients are summed over replicas so many at once, unless a script says otherwise.
BUCKET_BYTES = 25 * 2**20
# Messages that follow the last backward and bring the step's results to all ranks.
LAST_MESSAGES = 1


@dataclass(frozen=True)
class Traffic:
    """A rank's traffic: seconds, and bytes."""

    seconds: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.seconds + other.seconds, self.bytes + other.bytes)


@dataclass(frozen=True)
class Link:
    """How ranks talk: seconds per message, bytes per second. The defaults are those of gloo within a host; a job measures
    its own.

    sums_all: whether ranks get the whole of a sum of which each wants a part, as gloo's do.
    """

    latency: float = 2e-4
    bandwidth: float = 2e9
    sums_all: bool = True

    def seconds(self, size: float) -> float:
        """Time to send `size` bytes."""
        return self.latency + size / self.bandwidth if size else 0.0

    def summed(self, size: float, ranks: int) -> Traffic:
        """Returns the cost of summing `size` bytes over ranks in a ring: each hands an n-th on, n - 1 times to sum and n - 1
        times to spread (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009)."""
        return self._round(size, ranks, 2)

    def scattered(self, size: float, ranks: int) -> Traffic:
        """The same where each rank gets its part of the sum alone."""
        return self._round(size, ranks, 2 if self.sums_all else 1)

    def gathered(self, size: float, ranks: int) -> Traffic:
        """Returns what it takes until all ranks have `size` bytes, of which each had a part."""
        return self._round(size, ranks, 1)

    def spread(self, size: float, ranks: int, number: int) -> Traffic:
        """Returns the cost until all ranks have what one had, in pieces one after the other: each by a tree, in which
        twice as many have it after each message."""
        if ranks == 1:
            return Traffic()
        return Traffic((ranks - 1).bit_length() * number * self.seconds(size / max(1, number)), (ranks - 1) / ranks * size)

    def _round(self, size: float, ranks: int, times: int) -> Traffic:
        messages = times * (ranks - 1)
        return Traffic(messages * self.seconds(size / ranks), messages * size / ranks)

    def quicker(self, factor: float) -> Link:
        """A link that takes less time by a factor: for what is counted as work, which a crowd of ranks makes longer."""
        return replace(self, latency=self.latency / factor, bandwidth=self.bandwidth * factor)


def slowed(costs: Costs, factor: float) -> Costs:
    """The same work on a device that takes `factor` times as long."""
    units = [replace(one, forward=one.forward * factor, backward=one.backward * factor) for one in costs.units]
    return replace(costs, units=tuple(units), everywhere=costs.everywhere * factor, around=costs.around * factor)


def of_rows(costs: Costs, factor: float) -> Costs:
    """Of a microbatch with `factor` times the rows: all but parameters, and code beside modules, grows with them."""
    units = [
        replace(
            one,
            forward=one.forward * factor,
            backward=one.backward * factor,
            saved=round(one.saved * factor),
            least=round(one.least * factor),
            sent=one.sent * factor,
        )
        for one in costs.units
    ]
    crossing = tuple(round(size * factor) for size in costs.crossing)
    return replace(costs, units=tuple(units), crossing=crossing, everywhere=costs.everywhere * factor)


def of_sequences(costs: Costs, blocks: tuple[str, ...], ranks: int, link: Link) -> Costs:
    """Of a rank that has a part of the sequence inside of blocks. It gathers keys, values and the result in the forward, and
    in the backward sums the gradients of keys and values: each is thought to be as large as what the block is given.

    Args:
        blocks: names of the units.
        ranks: that divide a sequence.
    """
    units = []
    for one in costs.units:
        if one.unit in blocks:
            there, back = link.gathered(3 * one.least, ranks), link.scattered(2 * one.least, ranks)
            one = replace(
                one,
                forward=one.forward / ranks + there.seconds,
                backward=one.backward / ranks + (back.seconds if one.backward else 0.0),
                saved=one.least + (one.saved - one.least) // ranks,
                sent=one.sent + there.bytes + (back.bytes if one.backward else 0.0),
            )
        units.append(one)
    return replace(costs, units=tuple(units))


def costs_of(trace: Trace, root: nn.Module, optimizer_states: int, shared: int = 1) -> Costs:
    """Sums a measured trace up by position.

    Args:
        optimizer_states: tensors of the parameter's size that the optimizer keeps (Adam: 2).
        shared: replicas that these are shared out among.

    Raises:
        PlanError: no module was called.
    """
    count = trace.positions
    if not count:
        raise PlanError(
            "the step function uses no module with parameters of the model",
            hint="let the first step call the model, or parts of it (model.module.part)",
        )
    forward, backward, saved = [0.0] * count, [0.0] * count, [0] * count
    freed = [0] * count
    names: list[set[str]] = [set() for _ in range(count)]
    everywhere = 0.0
    for event in trace.events:
        if event.replicated:
            everywhere += event.seconds_forward
            continue
        forward[event.position] += event.seconds_forward
        backward[event.position] += event.seconds_backward
        saved[event.position] += event.saved_bytes
        if event.is_unit:
            freed[event.position] += max(0, event.saved_bytes - trace.given_bytes(event))
        names[event.position].update(event.parameters)
    calls: dict[str, int] = {}
    units = []
    for position, name in enumerate(trace.calls):
        number = calls[name] = calls.get(name, -1) + 1
        units.append(
            UnitCost(
                *(name, number, forward[position], backward[position], saved[position]),
                parameters=tuple(sorted(names[position])),
                path=trace.paths[position],
                least=saved[position] - freed[position],
            )
        )
    values, gradients, sizes = {}, {}, {}
    for name, parameter in root.named_parameters():
        elements, (gradient, state) = parameter.numel(), beside(parameter, optimizer_states, shared)
        values[name], gradients[name] = elements * parameter.element_size(), round(elements * gradient)
        sizes[name] = values[name] + gradients[name] + round(elements * state)
    crossing, no_cut = tuple(trace.boundary_bytes()), dict(trace.no_cut)
    return Costs(tuple(units), sizes, crossing, no_cut, everywhere, values, gradients)


def beside(parameter: torch.Tensor, optimizer_states: int, shared: int = 1) -> tuple[float, float]:
    """Bytes of the gradient, and of the optimizer's state, for each element of a parameter.

    Args:
        optimizer_states, shared: see `costs_of`.
    """
    if not parameter.requires_grad:
        return 0.0, 0.0
    if is_half(parameter):  # besides its states an optimizer keeps the float32 value
        return torch.float32.itemsize, torch.float32.itemsize * (1 + optimizer_states) / shared
    return parameter.element_size(), parameter.element_size() * optimizer_states / shared


def recomputed(costs: Costs) -> Costs:
    """Returns what is kept for the backward where every unit runs again in it."""
    return replace(costs, units=tuple(replace(unit, saved=unit.least) for unit in costs.units))


class StageCosts:
    """Costs of every range of positions at once, as (n + 1, n + 1) tables indexed [first, last]: `last` is not included."""

    def __init__(self, costs: Costs, link: Link) -> None:
        self.costs = costs
        count = len(costs.units)
        seconds = torch.tensor([unit.forward + unit.backward for unit in costs.units], dtype=torch.double)
        saved = torch.tensor([float(unit.saved) for unit in costs.units], dtype=torch.double)
        sends = [2 * link.seconds(size) for size in costs.crossing[:count]] + [0.0]
        sends[0] = 0.0
        talk = torch.tensor(sends, dtype=torch.double)
        self.seconds = _ranges(seconds) + talk[:, None] + talk[None, :] + costs.everywhere
        self.saved = _ranges(saved)
        self.parameters = self._parameters(count)

    def _parameters(self, count: int) -> torch.Tensor:
        """Bytes of parameters in a range, each counted once though several calls may read it."""
        rows, columns, sizes = [], [], []
        last_seen: dict[str, int] = {}
        for position, unit in enumerate(self.costs.units):
            for name in unit.parameters:
                before = last_seen.get(name, -1)
                size = float(self.costs.sizes.get(name, 0))
                # counts for first in (before, position], last in (position, count]
                rows += [before + 1, position + 1]
                columns += [position + 1, position + 1]
                sizes += [size, -size]
                last_seen[name] = position
        table = torch.zeros(count + 2, count + 2, dtype=torch.double)
        at = (torch.tensor(rows, dtype=torch.long), torch.tensor(columns, dtype=torch.long))
        table.index_put_(at, torch.tensor(sizes, dtype=torch.double), accumulate=True)
        return table.cumsum(0).cumsum(1)[: count + 1, : count + 1]

    def memory(self, in_flight: int) -> torch.Tensor:
        """Bytes of each range as a stage that keeps `in_flight` microbatches."""
        return self.parameters + in_flight * self.saved


def _ranges(values: torch.Tensor) -> torch.Tensor:
    total = torch.cat([torch.zeros(1, dtype=torch.double), values.cumsum(0)])
    return total[None, :] - total[:, None]
