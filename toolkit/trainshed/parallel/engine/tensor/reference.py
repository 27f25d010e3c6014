"""Compares a step of a model that is divided among ranks with the same step of the undivided one, before it ends.

Each rank runs the undivided model with its group's batches first, then the divided one. All ranks then exchange sketches of
what both have computed and come to one verdict, before an optimizer moves anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from trainshed.base.errors import shorten

from ...ground.errors import PipelineError
from ...ground.grid import Grid, TensorGroup
from ...ground.shards import whole
from ..object_collectives import AGAIN, FINDINGS, UNDIVIDED, objects
from ..verify.comparing import Findings, Order, described, differences, problem, unsteady
from ..verify.reference_step import Outcome, results_of
from ..verify.tensor_digest import sketch
from ..verify.traces import Traces, no_gradients
from ..verify.unit_outputs import Watch

# The runs after a difference: units of rounding by which results of modules are moved, and the seed of that.
_AGAIN = ((0.0, 0), (0.0, 0), (1.0, 1), (1.0, 2), (2.0, 3), (4.0, 4))


class Reference:
    """One step that is verified.

    Args:
        group: the ranks that run one batch.
        traces: what the forward may change, as it was before the step.
        undivided: within this context the model is whole. Collective over the tensor group.
        run: runs the model as it is with a watch, forward and backward; returns what the step function returned for each
            microbatch.

    failure: why the undivided model did not run here.
    """

    def __init__(
        self,
        root: nn.Module,
        grid: Grid,
        group: TensorGroup,
        traces: Traces,
        undivided: Callable[[], AbstractContextManager[None]],
        run: Callable[[Watch], list[Any]],
        *,
        training: bool,
    ) -> None:
        self._root, self._grid, self._group, self._traces = root, grid, group, traces
        self._whole, self._native = undivided, run
        self._training = training
        self.failure: Exception | None = None
        self._before = {n: sketch(whole(p.grad)) for n, p in root.named_parameters() if p.grad is not None}
        self._found = self._run(0.0, 0)

    def stopped(self) -> str:
        """Why the undivided model did not run, on the first rank where it did not; empty if it ran. Collective."""
        mine = self._found if isinstance(self._found, str) else ""
        return next((reason for reason in self._gathered(UNDIVIDED, mine) if reason), "")

    def compare(self, watch: Watch, results: list[Any], parameters: dict[str, Any], step: int) -> str:
        """After the step and the sums of its gradients. Collective.

        Args:
            watch: what looked at the divided model.
            results: what the step function returned for each microbatch.
            parameters: sketches of them before the step.

        Returns:
            A line to print; empty if there is nothing to say.

        Raises:
            PipelineError: on all ranks, if it is not what the undivided model computes. There are no gradients then.
        """
        outcome = self._outcome(watch, results, parameters)
        if not isinstance(self._found, Outcome):
            raise RuntimeError("there is no reference")
        number = self._group.ranks.index(self._grid.rank)
        replica = self._group.twins.index(self._grid.rank)
        mine = Findings(
            *(self._grid.rank, replica, f"part {number}", outcome, self._before),
            reference=self._found,
        )
        found: list[Findings] = self._gathered(FINDINGS, mine)
        order = self._order(watch)
        wrong = differences(found, order)
        if not wrong:
            return ""
        runs = [self._run(*kind) for kind in _AGAIN]
        again = dict(self._gathered(AGAIN, (replica, [one for one in runs if isinstance(one, Outcome)])))
        if any(len(outcomes) < len(_AGAIN) for outcomes in again.values()):
            return f"step {step} differs: {described(wrong, found)}; the undivided model did not run once more"
        wrong = differences(found, order, again)
        if not wrong:
            if name := unsteady(again):
                return f"verified as far as possible: {name!r} is not the same when the undivided model runs twice"
            return ""
        for parameter in self._root.parameters():
            parameter.grad = None
        raise problem(wrong, step, found)

    def _run(self, noise: float, seed: int) -> Outcome | str:
        now = Traces(self._root, lambda: None, self._grid.device)
        self._traces.restore()
        watch = Watch(noise, seed)
        try:
            with self._whole(), no_gradients(self._root):
                results = self._native(watch)
                parameters = {n: sketch(whole(p.detach())) for n, p in self._root.named_parameters()}
                return self._outcome(watch, results, parameters)
        except (torch.OutOfMemoryError, MemoryError):
            return "the undivided model ran out of memory on one rank"
        except PipelineError:
            raise
        except Exception as error:  # if it is the script's own, the divided model meets it, too
            self.failure = error
            return f"the undivided model ended with {type(error).__name__}: {shorten(str(error))}"
        finally:
            now.restore()

    def _outcome(self, watch: Watch, results: Sequence[Any], parameters: dict[str, Any]) -> Outcome:
        trained = {name: p for name, p in self._root.named_parameters() if p.requires_grad}
        found = Outcome(watch.seen, frozenset(watch.again), [results_of(one) for one in results], parameters=parameters)
        found.buffers = {name: sketch(buffer) for name, buffer in self._root.named_buffers()}
        if self._training:
            found.trained = tuple(trained)
            gradients = {name: trained[name].grad for name in found.trained}
            found.gradients = {
                name: sketch(whole(one)).rounded_as(trained[name].dtype)
                for name, one in gradients.items()
                if one is not None
            }
        return found

    def _order(self, watch: Watch) -> Order:
        calls = {(unit, call): at for at, (_, unit, call) in reversed(list(enumerate(watch.seen)))}
        return Order(calls, {name: at for at, (name, _) in enumerate(self._root.named_parameters())})

    def _gathered(self, at: str, mine: Any) -> list[Any]:
        grid = self._grid
        return objects(at, mine, range(grid.world), grid.control_group, torch.device("cpu"))
