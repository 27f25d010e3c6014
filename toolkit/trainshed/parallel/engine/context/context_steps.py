"""Steps of a model without stages, inside of whose blocks each rank of a context group has a part of the sequence.

All of them are given the same batch, and run all that is around the blocks whole. Context groups are replicas of each other.
Parameters may be sharded over all ranks: torch's means of gradients are then those that `crossing` speaks of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ...ground.grid import TensorGroup
from ...tracing.subject import Backward
from ..holding import Holding
from ..placement import broadcast_state
from ..suitable import check_values
from ..tensor.joint_steps import JointEngine, JointStep
from ..tensor.reference import Reference
from ..verify.traces import Traces
from ..verify.unit_outputs import Watch
from .crossing import Crossing
from .region import Region, candidates_in


class BlockEngine(JointEngine):
    """Steps of a model whose blocks divide sequences.

    Args:
        holding, attach, common: see `JointEngine`.
        marks: what the script says of a module: that it is a block, that it is none, or nothing.

    region: the model's blocks, from the first step on.
    """

    def __init__(
        self,
        holding: Holding,
        attach: Callable[[Backward | None], None],
        *,
        marks: Callable[[nn.Module], bool | None],
        **common: Any,
    ) -> None:
        super().__init__(holding, attach, **common)
        self.region: Region | None = None
        self._marks = marks

    def _blocks(self) -> Region:
        if self.region is None:
            raise RuntimeError("no step has begun")
        return self.region

    def _explained(self, error: Exception) -> Exception:
        if self.region is not None:
            self.region.crossing.let_go()
        return super()._explained(error)

    def _after(self, step: JointStep) -> None:
        if step.trains:
            self._say(self._blocks().told())


class ContextEngine(BlockEngine):
    """Takes the place of `steps.Engine`."""

    def _begun(self) -> tuple[Region, TensorGroup]:
        group = self._grid.context
        if group is None:
            raise RuntimeError("there is no context group")
        if self.region is None:
            check_values(self._root)
            self._root.to(self._grid.device)
            broadcast_state(self._root, self._grid)
            crossing = Crossing(group, self._grid.rank, self._grid.device)
            self.region = Region(candidates_in(self._root, self._marks, self._grid.settings.atomic), crossing)
        return self.region, group

    @contextmanager
    def _undivided(self) -> Iterator[None]:
        """Within this context the model is whole. Collective over all ranks where it is sharded."""
        with self.gathered(), self._blocks().undivided():
            yield

    def _reference(self, step: JointStep, due: bool, group: TensorGroup) -> Reference | None:
        if not due:
            return None
        region = self._blocks()

        def run(watch: Watch) -> list[Any]:
            with region.watched(watch):
                return self._turns(region, step.copied(), watch, 0)[0]

        traces = Traces(self._root, step.function, self._grid.device)
        reference = Reference(self._root, self._grid, group, traces, self._undivided, run, training=True)
        if reason := reference.stopped():
            self._say(f"this step is not verified: {reason}")
            return None
        return reference
