"""Measures what ranks take of a core beside the model's modules: on this machine while a plan is made, in a tenth of a
second.

Between two turns of a rank others have put what is theirs into the caches, where ranks share cores. So all is measured with
caches that hold something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from statistics import median

import torch
from torch import nn

from ..ground.torch_private import CALL
from ..tracing.call_routing import UnitGates
from ..tracing.route import Scout
from ..tracing.subject import Subject
from ..tracing.trace import Trace

_PASSES = 3
_CACHES = 2**23  # numbers: 32 MiB
_SMALL, _LARGE = 4, 2**18  # numbers in a parameter
_PARAMETERS, _LARGE_ONES = 64, 8


@dataclass(frozen=True)
class UpdateCost:
    """Seconds of an optimizer's step: for each parameter, and for each byte of its gradient."""

    parameter: float
    byte: float

    def seconds(self, parameters: float, size: float) -> float:
        """Of so many parameters with so many bytes of gradients."""
        return self.parameter * parameters + self.byte * size


def seconds_to_update(optimizer_states: int) -> UpdateCost:
    """Measured with SGD for no state, SGD with momentum for one, AdamW for two or more; on the CPU.

    Args:
        optimizer_states: tensors of a parameter's size that the optimizer keeps.
    """

    def step(count: int, size: int) -> float:
        parameters = [nn.Parameter(torch.zeros(size)) for _ in range(count)]
        for one in parameters:
            one.grad = torch.ones_like(one)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters)
        if optimizer_states < 2:
            optimizer = torch.optim.SGD(parameters, momentum=0.9 * optimizer_states)
        return _seconds(optimizer.step) / count

    small, large = step(_PARAMETERS, _SMALL), step(_LARGE_ONES, _LARGE)
    return UpdateCost(small, max(0.0, large - small) / (_LARGE * torch.float32.itemsize))


def seconds_around(subject: Subject, trace: Trace) -> float:
    """Returns what a stage takes for a microbatch besides its modules: it runs the step function without the others, and
    follows it once more before, with a snapshot of what it may change, where values may make it go another way."""
    gates = UnitGates(subject.root)
    names = dict.fromkeys(event.name for event in trace.events if event.is_unit)
    modules = [gates.part(name, "") for name in names]
    before = [(module.__dict__, module.__dict__.get(CALL)) for module in modules]
    gates.put(names)

    def follow() -> None:
        scout = Scout(trace, gates, subject.device)
        with subject.attached(scout):
            scout.follows(subject.function, *subject.inputs())

    def snapshot() -> None:
        with subject.untouched(buffers=False):
            pass

    try:
        # Once is enough: what the step function does besides computing (it logs, it counts) it does each time.
        with subject.untouched(), redirect_stdout(StringIO()):
            once = _seconds(follow, 1)
    finally:
        for own, there in before:
            own.pop(CALL, None)
            own.update({} if there is None else {CALL: there})
    return 2 * once + _seconds(snapshot) if trace.asks else once


def _seconds(action: Callable[[], object], passes: int = _PASSES) -> float:
    """The median, with cold caches; the first time does not count."""
    others, times = torch.zeros(_CACHES), []
    for _ in range(passes + 1):
        others.add_(1)
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return median(times[1:])
