"""The cost model: what a range of positions costs as one pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ..errors import PlanError
from ..halves import is_half
from ..record.trace import Trace


@dataclass(frozen=True)
class Keeping:
    """What a job keeps for each parameter and each microbatch, and where.

    states: tensors of the parameter's size that the optimizer keeps (Adam: 2).
    shared: replicas that these, and float32 values of parameters in half precision, are shared out among.
    states_away: whether all of these lie in the CPU's memory, and not in that of the device that the plan is for.
    activations_away: whether large tensors that a backward needs do.
    """

    states: int = 2
    shared: int = 1
    states_away: bool = False
    activations_away: bool = False


@dataclass(frozen=True)
class UnitCost:
    """One unit call with the glue after it; seconds per microbatch, bytes.

    saved: what its backward needs, of what stays on the device.
    passing: what it saves, but does not stay.
    path: the name by which it was called, if it has several.
    call: 0 for the unit's first call, 1 for its second ...
    parameters: names of the parameters that it reads.
    """

    unit: str
    call: int
    forward: float
    backward: float
    saved: int
    parameters: tuple[str, ...]
    path: str = ""
    passing: int = 0


@dataclass(frozen=True)
class Costs:
    """All that the partitioner needs.

    sizes: parameter -> bytes that it takes with its gradient and optimizer state.
    crossing: bytes that cross a cut before each position, index 0 unused.
    no_cut: position -> reason.
    everywhere: seconds of replicated work, paid by each stage.
    values, gradients: parameter -> what of `sizes` are these.
    """

    units: tuple[UnitCost, ...]
    sizes: dict[str, int]
    crossing: tuple[int, ...]
    no_cut: dict[int, str]
    everywhere: float = 0.0
    values: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Forward and backward of the whole model."""
        return sum(unit.forward + unit.backward for unit in self.units)


# What our own code and torch's schedule take of a core for one microbatch of a stage, seconds forward and backward.
OVERHEAD = (2e-4, 1e-4)
# Messages that follow the last backward and bring the step's results to all ranks.
LAST_MESSAGES = 1


@dataclass(frozen=True)
class Link:
    """How stages talk: seconds per message, bytes per second. The defaults are those of gloo within a host; a job measures
    its own."""

    latency: float = 2e-4
    bandwidth: float = 2e9

    def seconds(self, size: int) -> float:
        """Time to send `size` bytes."""
        return self.latency + size / self.bandwidth if size else 0.0

    def ring(self, size: float, ranks: int, halves: int = 2) -> float:
        """Seconds to sum `size` bytes over ranks: each hands an n-th of it on, n - 1 times to sum and n - 1 times to spread
        (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009).

        Args:
            halves: 1 for one of the two, as to gather what is in parts.
        """
        return halves * (ranks - 1) * self.seconds(round(size / ranks)) if ranks > 1 and size else 0.0

    def quicker(self, factor: float) -> Link:
        """A link that takes less time by a factor: for what is counted as work, which a crowd of ranks makes longer."""
        return Link(self.latency / factor, self.bandwidth * factor)


def slowed(costs: Costs, factor: float) -> Costs:
    """The same work on a device that takes `factor` times as long."""
    units = [replace(one, forward=one.forward * factor, backward=one.backward * factor) for one in costs.units]
    return replace(costs, units=tuple(units), everywhere=costs.everywhere * factor)


def of_rows(costs: Costs, factor: float) -> Costs:
    """Of a microbatch with `factor` times the rows: all but parameters grows with them, where operations are counted."""
    units = [
        replace(
            one,
            forward=one.forward * factor,
            backward=one.backward * factor,
            saved=round(one.saved * factor),
            passing=round(one.passing * factor),
        )
        for one in costs.units
    ]
    crossing = tuple(round(size * factor) for size in costs.crossing)
    return replace(costs, units=tuple(units), crossing=crossing, everywhere=costs.everywhere * factor)


def costs_of(trace: Trace, root: nn.Module, keeping: Keeping) -> Costs:
    """Sums a measured trace up by position.

    Raises:
        PlanError: no module was called.
    """
    count = trace.positions
    if not count:
        raise PlanError(
            "the step function uses no module with parameters of the model",
            hint="let the first step call the model, or parts of it (model.module.part)",
        )
    forward, backward, saved, passing = [0.0] * count, [0.0] * count, [0] * count, [0] * count
    names: list[set[str]] = [set() for _ in range(count)]
    everywhere = 0.0
    for event in trace.events:
        if event.replicated:
            everywhere += event.seconds_forward
            continue
        forward[event.position] += event.seconds_forward
        backward[event.position] += event.seconds_backward
        away = event.saved_large if keeping.activations_away else 0
        saved[event.position] += event.saved_bytes - away
        passing[event.position] += away
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
                passing=passing[position],
            )
        )
    values, gradients, sizes = {}, {}, {}
    for name, parameter in root.named_parameters():
        values[name] = parameter.numel() * parameter.element_size()
        gradients[name] = parameter.numel() * gradient_bytes(parameter)
        sizes[name] = values[name] + gradients[name] + round(parameter.numel() * state_bytes(parameter, keeping))
    crossing, no_cut = tuple(trace.boundary_bytes()), dict(trace.no_cut)
    return Costs(tuple(units), sizes, crossing, no_cut, everywhere, values, gradients)


def gradient_bytes(parameter: torch.Tensor) -> int:
    """For each element. Those of parameters in half precision are summed in float32 where an optimizer keeps masters."""
    if not parameter.requires_grad:
        return 0
    return torch.float32.itemsize if is_half(parameter) else parameter.element_size()


def state_bytes(parameter: torch.Tensor, keeping: Keeping) -> float:
    """What an optimizer keeps on the device for each element: its states, and masters."""
    if not parameter.requires_grad or keeping.states_away:
        return 0.0
    masters = is_half(parameter)
    kept = torch.float32.itemsize * (1 + keeping.states) if masters else parameter.element_size() * keeping.states
    return kept / keeping.shared


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
        """Bytes of each range as a stage that keeps `in_flight` microbatches; what goes away or comes back meanwhile is that
        of the unit with most."""
        passing = max((unit.passing for unit in self.costs.units), default=0)
        return self.parameters + in_flight * self.saved + passing


def _ranges(values: torch.Tensor) -> torch.Tensor:
    total = torch.cat([torch.zeros(1, dtype=torch.double), values.cumsum(0)])
    return total[None, :] - total[:, None]
