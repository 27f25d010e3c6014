"""Steps of a model without stages whose modules are divided among the ranks of a tensor group, which has replicas.

The first step runs the undivided model, to see who reads which parameter, and to compare; then it divides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from trainshed.base.errors import shorten

from ...ground.errors import PipelineError
from ...ground.grid import TensorGroup
from ...tracing import host_rng as dice
from ...tracing import rng
from ...tracing.subject import Backward
from ..holding import Holding
from ..losses import Losses, called
from ..object_collectives import UNDIVIDED, objects
from ..placement import broadcast_state
from ..shard_mesh import ShardMesh, let_go
from ..suitable import check_values
from ..verify.traces import Traces, no_gradients
from ..verify.unit_outputs import Watch
from .division import Division, in_words, tensor_mesh
from .joint_steps import JointEngine, JointStep, Parted
from .pairs import Attempt, Pairs, look_for
from .part_shards import PartShards
from .reference import Reference
from .sequences import Along, look_along


class TensorEngine(JointEngine):
    """Takes the place of `steps.Engine`.

    Args:
        holding, attach, common: see `JointEngine`.
        wanted: tells whether the script wants a module divided.

    division: the modules that are divided, from the first step on.
    """

    def __init__(
        self,
        holding: Holding,
        attach: Callable[[Backward | None], None],
        *,
        wanted: Callable[[nn.Module], bool],
        **common: Any,
    ) -> None:
        super().__init__(holding, attach, **common)
        self.division: Division | None = None
        self._wanted = wanted

    def _explained(self, error: Exception) -> Exception:
        explained = super()._explained(error)
        if self.division is not None:
            let_go(self.division.mesh)
        return in_words(error) or explained

    def _begun(self) -> tuple[Parted, TensorGroup]:
        group = self._grid.tensor
        if group is None:
            raise RuntimeError("there is no tensor group")
        if self.division is None:
            check_values(self._root)
            self._root.to(self._grid.device)
            broadcast_state(self._root, self._grid)
            where = self._where
            mesh = tensor_mesh(group.group, self._grid.device) if where is None else where.for_parts
            self.division = Division(self._root, mesh, self._wanted, self._grid.settings.atomic)
        return self.division, group

    def _divide(self) -> None:
        division = self._divided()
        division.divide(self._reasons)
        self._say(division.line())

    def _shard(self, where: ShardMesh, ran: set[str]) -> PartShards:
        shards = super()._shard(where, ran)
        self._divided().region.gathers = shards.gathers
        return shards

    @contextmanager
    def _undivided(self) -> Iterator[None]:
        """Within this context the model is whole. Collective over the tensor group, or over all ranks that have shards."""
        if not self.holding.partitioned:
            yield
            return
        shards = self._at_work()
        with nullcontext() if shards is None else shards.off(), self._divided().whole():
            yield

    def _divided(self) -> Division:
        if self.division is None:
            raise RuntimeError("the model is not divided")
        return self.division

    def _reasons(self, mine: dict[str, str]) -> dict[str, str]:
        """Why modules stay whole, for the first rank that finds it: all ranks divide the same. Collective."""
        grid = self._grid
        found = objects(UNDIVIDED, mine, range(grid.world), grid.control_group, torch.device("cpu"))
        return {name: reason for reasons in reversed(found) for name, reason in reasons.items()}

    def _reference(self, step: JointStep, due: bool, group: TensorGroup) -> Reference | None:
        """As said there; in the first step an undivided model runs in any case."""
        first = not self.holding.partitioned
        if not (due or first):
            return None
        seen = first

        def run(watch: Watch) -> list[Any]:
            nonlocal seen
            uses, seen = seen, False
            return self._run_whole(step.copied(), watch, uses=uses)

        traces = Traces(self._root, step.function, self._grid.device)
        reference = Reference(self._root, self._grid, group, traces, self._undivided, run, training=True)
        if reason := reference.stopped():
            if first:
                raise PipelineError(
                    f"the step did not run before the model was divided, from which it is seen what can be: {reason}",
                    hint="the whole model has to run once on each rank",
                ) from reference.failure
            self._say(f"this step is not verified: {reason}")
            return None
        if first:
            self._pair(step, traces)
        return reference if due else None

    def _run_whole(self, step: JointStep, watch: Watch, *, uses: bool) -> list[Any]:
        """What the step function returns for each microbatch, of the undivided model.

        Args:
            uses: see `Division.watched`.
        """
        division = self._divided()
        with division.watched(watch, uses=uses):
            return self._turns(division, step, watch, 0)[0]

    def _pair(self, step: JointStep, traces: Traces) -> None:
        """Finds modules between which nothing has to be gathered, or tokens alone: the forwards run a few times more, on
        each rank by itself. Collective."""
        division, grid = self._divided(), self._grid

        def trial(attempt: type[Any], told: Any, otherwise: str) -> list[Any] | None:
            mine = self._seen(step, traces, attempt, told)
            found = objects(UNDIVIDED, mine, range(grid.world), grid.control_group, torch.device("cpu"))
            if failed := next((one for one in found if isinstance(one, str)), ""):
                self._say(f"tensor parallelism: {otherwise}, for the forward did not run with parts: {failed}")
                return None
            return found

        choice = look_for(lambda avoided: trial(Pairs, avoided, "no modules make pairs"), division.sizes())
        if choice is not None:
            division.pair(look_along(choice, lambda pairs: trial(Along, pairs, "results of pairs are whole")))

    def _seen(self, step: JointStep, traces: Traces, attempt: type[Attempt], told: Any) -> Any:
        """What a trial shows; in words why it did not run."""
        now = Traces(self._root, lambda: None, self._grid.device)
        traces.restore()
        try:
            with self._divided().trying(attempt, told) as tried, no_gradients(self._root):
                self._try(step.copied())
            return tried.seen
        except Exception as error:
            return f"{type(error).__name__}: {shorten(str(error))}"
        finally:
            now.restore()

    def _try(self, step: JointStep) -> None:
        for turn in step.turns:
            rng.set_state(turn.random, self._grid.device)
            dice.set_state(turn.rolled)
            for microbatch in turn.microbatches:
                self._divided().left(called(step.function, microbatch, Losses(), self._attach))
