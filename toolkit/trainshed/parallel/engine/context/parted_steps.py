"""Steps of a model without stages that is divided twice: its modules among tensor groups, and inside of its blocks the
sequences among context groups.

The ranks of a tensor group have the same places of a sequence, so all of them give a module that is divided the same part,
as they do with whole sequences. All ranks of both kinds of groups are given one batch, and are one replica. A first step
looks at the undivided model, divides modules, and then tries each block in parts: with whole parameters, which the tensor
group lends for that moment, so that a block which fails on one rank is waited for by its context group alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ...ground.grid import TensorGroup
from ..tensor.divided_steps import TensorEngine
from ..tensor.division import Division
from ..tensor.joint_steps import JointStep, Parted
from ..verify.traces import Traces
from ..verify.unit_outputs import Watch
from .context_steps import BlockEngine
from .crossing import Crossing
from .region import Region, candidates_in


class _Both:
    """The modules and the blocks of one model that are divided, as `JointEngine` sees them.

    inputs: of blocks, which all ranks have alike; those of modules are parts within blocks.
    """

    def __init__(self, division: Division, region: Region) -> None:
        self.division, self.region = division, region
        self.inputs = region.inputs

    @property
    def running(self) -> bool:
        """Whether all ranks run the same now."""
        return self.division.running

    @running.setter
    def running(self, value: bool) -> None:
        self.division.running = self.region.running = value

    @contextmanager
    def installed(self) -> Iterator[None]:
        """A context for a step."""
        with self.division.installed(), self.region.installed():
            yield

    @contextmanager
    def watched(self, watch: Watch | None) -> Iterator[None]:
        """A context in which `watch` looks at blocks, and at modules outside of them."""
        with self.division.watched(watch), self.region.watched(watch):
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        """A context for the backward of a microbatch. Modules are not watched there: an activation checkpoint within a block
        runs them again with parts of the sequence."""
        watch, self.division.watch = self.division.watch, None
        try:
            with self.division.backward(), self.region.backward():
                yield
        finally:
            self.division.watch = watch

    def left(self, value: Any) -> Any:
        """What the step function returned, whole."""
        return self.division.left(value)

    def begin(self) -> None:
        """Before the microbatches of a step."""
        self.division.inputs.clear()
        self.division.begin()
        self.region.begin()

    def forget(self) -> None:
        """After a microbatch: what is of it alone."""
        self.division.forget()
        self.region.forget()


class PartedContextEngine(BlockEngine, TensorEngine):
    """Takes the place of `steps.Engine`. Its arguments are those of both."""

    def _begun(self) -> tuple[Parted, TensorGroup]:
        super()._begun()
        grid, division = self._grid, self._divided()
        if grid.context is None or grid.joint is None:
            raise RuntimeError("there is no context group")
        if self.region is None:
            crossing = Crossing(grid.context, grid.rank, grid.device)
            blocks = candidates_in(self._root, self._marks, grid.settings.atomic)
            self.region = Region(blocks, crossing, division.whole)
        return _Both(division, self.region), grid.joint

    def between_steps(self) -> AbstractContextManager[None]:
        """A context for calls outside of steps, in which blocks run whole."""
        return nullcontext() if self.region is None else self.region.undivided()

    @contextmanager
    def _undivided(self) -> Iterator[None]:
        """As there, and blocks run whole."""
        with super()._undivided(), self._blocks().undivided():
            yield

    def _run_whole(self, step: JointStep, watch: Watch, *, uses: bool) -> list[Any]:
        both = _Both(self._divided(), self._blocks())
        with both.division.watched(watch, uses=uses), both.region.watched(watch):
            return self._turns(both, step, watch, 0)[0]

    def _pair(self, step: JointStep, traces: Traces) -> None:
        """Nothing stays in parts between modules: blocks exchange whole tensors of theirs."""

    def _divide(self) -> None:
        with self._blocks().put_aside():
            super()._divide()

    def _compare_ranks(self, parted: Parted, group: TensorGroup, step: JointStep) -> None:
        super()._compare_ranks(parted, group, step)
        if self._grid.tensor is not None:
            self._compare_in(self._grid.tensor, self._divided().inputs, [])
