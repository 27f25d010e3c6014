"""When a step is verified, and how: the undivided model computes it once more, on the first rank of each pipeline.

The undivided model runs before the pipeline does, with the state that the step starts from. All ranks then exchange sketches
of what they have computed, and come to the same verdict before the step function returns, so before an optimizer moves
anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from ...record.subject import Backward
from ..holding import Holding
from ..preparing import Preparation, Prepared
from ..stage import Step
from .comparing import Again, Findings, Order, differences, problem, unsteady
from .fetch import fetch_buffers, fetch_parameters
from .room import has_room
from .sketch import sketch
from .traces import Traces
from .undivided import Outcome, results_of, run
from .unit_outputs import Watch

# A forward that does the same with tensors of other shapes is verified for so many shapes.
_SHAPES = 3
# The runs after a difference: units of rounding by which results of modules are moved, and the seed of that.
_AGAIN = ((0.0, 0), (0.0, 0), (1.0, 1), (1.0, 2), (2.0, 3), (4.0, 4))


class Verifier:
    """Decides which steps are verified, and verifies them.

    Args:
        attach: tells the model that the user sees where its `backward` goes.
        loss_scale: gives the factor of the loss.
        average: whether each microbatch's loss is divided by their number.
    """

    def __init__(
        self,
        holding: Holding,
        preparation: Preparation,
        attach: Callable[[Backward | None], None],
        *,
        loss_scale: Callable[[], float],
        average: bool,
    ) -> None:
        self.holding = holding
        self.preparation = preparation
        self.attach = attach
        self._loss_scale = loss_scale
        self._average = average
        self._settings = holding.grid.settings
        self._shapes: dict[str, int] = {}
        self._steps = 0

    def due(self, prepared: Prepared) -> bool:
        """Whether this step is to be verified; the same on all ranks of a pipeline. To be asked once a step."""
        due = self._is_due(prepared)
        if not due:
            self.preparation.whole = None
        return due

    def _is_due(self, prepared: Prepared) -> bool:
        number = self._steps
        self._steps += prepared.training
        fresh, prepared.verified = not prepared.verified, True
        every = self._settings.verify_steps
        if every and prepared.training and number % every == 0:
            return True
        if not fresh or self._settings.verify == "off" or (self._settings.verify == "first" and number > 0):
            return False
        form = _form_of(prepared)
        self._shapes[form] = self._shapes.get(form, 0) + 1
        return self._shapes[form] <= _SHAPES

    def begin(self, prepared: Prepared, step: Step) -> Check | None:
        """Before the pipelined step: what it will be compared with. None where the model has no room. Collective over the
        pipeline, in training also over its replicas."""
        whole, self.preparation.whole = self.preparation.whole, None
        # What the step itself was given is not asked: it may be what is wrong.
        scale = (1 / len(step.microbatches) if self._average else 1.0) * self._loss_scale()
        return Check(self, prepared, step, whole, scale).begun()


class Check:
    """One step that is verified.

    Args:
        whole: all parameters on the first rank of a pipeline, and nothing on the others, if they are still there.
        scale: of the loss.
    """

    def __init__(
        self, verifier: Verifier, prepared: Prepared, step: Step, whole: Mapping[str, torch.Tensor] | None, scale: float
    ) -> None:
        self._holding = holding = verifier.holding
        self._grid, self._root = holding.grid, holding.root
        self._preparation, self._attach = verifier.preparation, verifier.attach
        self._prepared, self._step, self._number = prepared, step, verifier._steps
        self._whole, self._scale = whole, scale
        self._leads = self._grid.place.pipeline == 0
        self._together = prepared.training and len(self._grid.replica_ranks) > 1
        self._group = self._grid.control_group if self._together else self._grid.pipeline_group
        self._ranks = self._grid.world if self._together else len(self._grid.pipeline_ranks)

    def begun(self) -> Check | None:
        """Itself, or None."""
        plan = self._preparation.plan
        fits = not self._leads or has_room(self._root, plan, self._grid.device, whole=self._whole is not None)
        if not all(self._gathered(fits)):
            self._say("this step is not verified: the undivided model has no room on one rank")
            return None
        self._start = Traces(self._root, self._step.function, self._grid.device)
        self._buffers = fetch_buffers(self._holding)
        self._before = {n: sketch(p.grad) for n, p in self._held().items() if p.grad is not None}
        self._parameters = {n: sketch(p) for n, p in self._holding.parameters.items()}
        found = self._undivided(self._whole)
        self._reference, self._whole = found, None
        if not all(self._gathered(found is not None)):
            self._say("this step is not verified: the undivided model ran out of memory on one rank")
            return None
        self._step.watch = Watch()
        return self

    def compare(self, results: list[Any]) -> None:
        """After the pipelined step.

        Raises:
            PipelineError: on all ranks that take part, if it is not what the undivided model computes. There are no
                gradients then.
        """
        found = self._gathered(self._findings(results))
        order = self._order()
        wrong = differences(found, order)
        if not wrong:
            return
        again = self._run_again()
        if len(again) < len({one.replica for one in found}):
            self._say("this step is not verified: the undivided model ran out of memory on one rank")
            return
        wrong = differences(found, order, again)
        if not wrong:
            if name := unsteady(again):
                self._say(f"verified as far as possible: {name!r} is not the same when the undivided model runs twice")
            return
        for parameter in self._held().values():
            parameter.grad = None
        raise problem(wrong, self._number, found)

    def _undivided(self, values: Mapping[str, torch.Tensor] | None, noise: float = 0.0, seed: int = 0) -> Outcome | None:
        """What the undivided model computes from the state at the start of the step. None where it runs out of memory; empty
        on a rank that only helps. Collective over the pipeline.

        Args:
            values: of all parameters; None if they are to be fetched.
        """
        if values is None:
            values = fetch_parameters(self._holding)
        if not self._leads:
            return Outcome()
        device, function = self._grid.device, self._step.function
        now = Traces(self._root, function, device)
        try:
            self._start.restore()
            with torch.no_grad():
                for name, buffer in self._root.named_buffers():
                    if name in self._buffers:
                        buffer.copy_(self._buffers[name])
            gates, copies = self._preparation.frame.gates, any(w.cut.trace.mutates_inputs for w in self._prepared.ways)
            watch = Watch(noise, seed)
            return run(
                self._root, gates, self._attach, self._step, device, values, scale=self._scale, copies=copies, watch=watch
            )
        except (torch.OutOfMemoryError, MemoryError):
            return None
        finally:
            now.restore()

    def _run_again(self) -> Again:
        runs = [self._undivided(None, *kind) for kind in _AGAIN]
        mine = [one for one in runs if one is not None] if self._leads else []
        found = self._gathered((self._grid.place.replica, mine))
        return {replica: outcomes for replica, outcomes in found if len(outcomes) == len(_AGAIN)}

    def _findings(self, results: list[Any]) -> Findings:
        watch = self._step.watch
        homes, here = self._holding.buffer_homes(), self._grid.place.pipeline
        outcome = Outcome(
            outputs=watch.seen if isinstance(watch, Watch) else {},
            results=[results_of(one) for one in results],
            buffers={n: sketch(b) for n, b in self._root.named_buffers() if homes.get(n) == here and not b.is_meta},
            parameters=self._parameters,
        )
        if self._prepared.training:
            held = self._held()
            outcome.trained = tuple(held)
            outcome.gradients = {name: sketch(p.grad) for name, p in held.items() if p.grad is not None}
        stages = [stage for stage in self._prepared.mine]
        words = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
        reference = self._reference if self._leads else None
        return Findings(self._grid.rank, self._grid.place.replica, words, outcome, self._before, reference)

    def _held(self) -> dict[str, torch.Tensor]:
        """Parameters of this rank whose gradients can be compared: hooks that wait for gradients may change them."""
        return {
            name: parameter
            for name, parameter in self._holding.parameters.items()
            if parameter.requires_grad and not parameter._post_accumulate_grad_hooks  # type: ignore[attr-defined]
        }

    def _order(self) -> Order:
        calls: dict[tuple[str, int], int] = {}
        uses: dict[str, int] = {}
        for way in self._prepared.ways:
            seen: dict[str, int] = {}
            for position, name in enumerate(way.cut.trace.calls):
                number = seen[name] = seen.get(name, -1) + 1
                calls.setdefault((name, number), position)
            for event in way.cut.trace.events:
                for name in event.parameters:
                    uses[name] = min(uses.get(name, event.position), event.position)
        return Order(calls, uses)

    def _gathered(self, mine: Any) -> list[Any]:
        found: list[Any] = [mine] * self._ranks
        if self._ranks > 1:
            dist.all_gather_object(found, mine, group=self._group)
        return found

    def _say(self, line: str) -> None:
        if self._grid.rank == 0:
            print(line, flush=True)


def _form_of(prepared: Prepared) -> str:
    """The same for forwards that do the same with tensors of other shapes."""
    digest = hashlib.sha256(repr((prepared.training, prepared.random, prepared.draws)).encode())
    for way in prepared.ways:
        trace = way.cut.trace
        digest.update(repr((way.cut.starts, sorted(trace.reached))).encode())
        for event in trace.events:
            digest.update(repr((event.name, event.position, event.replicated)).encode())
    return digest.hexdigest()
