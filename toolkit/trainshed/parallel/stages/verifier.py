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

from trainshed.base.errors import shorten

from ..engine.checking import in_company
from ..engine.object_collectives import AGAIN, FINDINGS, ROOM, UNDIVIDED, objects
from ..engine.verify.attributes import Attributes
from ..engine.verify.comparing import Again, Findings, Order, described, differences, problem, unsteady
from ..engine.verify.contributions import Contributions
from ..engine.verify.reference_step import Outcome, results_of, run
from ..engine.verify.tensor_digest import Sketch, sketch
from ..engine.verify.traces import Traces
from ..engine.verify.unit_outputs import Watch
from ..engine.verify.values import Values, WholeParameters, fetch_buffers, fetch_parameters
from ..engine.verify.verify_budget import Extent, extent_of
from ..ground.shards import whole
from ..ground.torch_private import accumulated_hooks, buffers_in
from ..tracing.subject import Backward
from .in_parts import InParts, Library
from .preparing import Preparation, Prepared
from .stage import Step
from .stage_holding import StageHolding

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

    said: lines that were printed; each is printed once.
    """

    def __init__(
        self,
        holding: StageHolding,
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
        self.said: set[str] = set()
        self._steps = 0

    def due(self, prepared: Prepared) -> bool:
        """Returns whether this step is to be verified; the same on all ranks of a pipeline. To be asked once a step."""
        due = self._is_due(prepared)
        if not due:
            self.preparation.whole = None
            self._made()
        return due

    def _made(self) -> dict[str, Sketch]:
        """Of parameters as they were made in this step, before they were divided: once."""
        parts, found = self.holding.parts, dict[str, Sketch]()
        if parts is not None:
            found, parts.made = parts.made, found
        return found

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
        return Check(self, prepared, step, whole, self._made(), scale).begun()


class Check:
    """One step that is verified.

    Args:
        whole: all parameters on the first rank of a pipeline, and nothing on the others, if they are still there.
        made: parameters that were whole only to be divided.
        scale: of the loss.
    """

    def __init__(
        self,
        verifier: Verifier,
        prepared: Prepared,
        step: Step,
        whole: Mapping[str, torch.Tensor] | None,
        made: Mapping[str, Sketch],
        scale: float,
    ) -> None:
        self._holding = holding = verifier.holding
        self._grid, self._root = holding.grid, holding.root
        self._preparation, self._attach = verifier.preparation, verifier.attach
        self._prepared, self._step, self._number = prepared, step, verifier._steps
        self._whole, self._made, self._scale = whole, made, scale
        self._said = verifier.said
        self._leads = self._grid.place.pipeline == 0
        self._together = prepared.training and len(self._grid.replica_ranks) > 1

    def begun(self) -> Check | None:
        """Itself, or None."""
        extent = self._extent = self._agreed_extent()
        if extent is Extent.NOTHING:
            self._say("this step is not verified: the undivided model has no room on one rank")
            return None
        self._only = self._sampled() if extent > Extent.ALL else None
        if extent is Extent.ONE:
            self._say(
                f"steps are verified by microbatch {self._only} alone: all of them would take the undivided model long"
            )
        elif extent is Extent.IN_PARTS:
            self._say(
                f"steps are verified by microbatch {self._only} alone, module by module: "
                "the undivided model has no room on one rank"
            )
            self._whole = None
        if self._leads:
            self._start = Traces(self._root, self._step.function, self._grid.device)
        self._buffers, self._attributes = fetch_buffers(self._holding), Attributes(self._holding)
        self._before = self._gradients() if self._prepared.training else {}
        now = {n: sketch(whole(p.detach())) for n, p in self._holding.parameters.items()}
        self._parameters = {**now, **self._made}
        found = self._undivided(self._whole)
        self._whole = None
        if reasons := [reason for reason in self._gathered(UNDIVIDED, found if isinstance(found, str) else "") if reason]:
            self._say(f"this step is not verified: {reasons[0]}")
            return None
        self._reference = found if isinstance(found, Outcome) else None
        arrived = Contributions(self._held(), self._only) if self._only is not None and self._prepared.training else None
        self._contributions = arrived
        self._step.watch = Watch(only=self._only, contributions=arrived)
        return self

    def compare(self, results: list[Any]) -> None:
        """After the pipelined step.

        Raises:
            PipelineError: on all ranks that take part, if it is not what the undivided model computes. There are no
                gradients then.
        """
        found = self._gathered(FINDINGS, self._findings(results))
        order = self._order()
        wrong = differences(found, order)
        if not wrong:
            return
        again = self._run_again()
        if len(again) < len({one.replica for one in found}):
            self._say(f"step {self._number} differs: {described(wrong, found)}; the undivided model did not run once more")
            return
        wrong = differences(found, order, again)
        if not wrong:
            if name := unsteady(again):
                self._say(f"verified as far as possible: {name!r} is not the same when the undivided model runs twice")
            return
        self._holding.forget_gradients()
        raise problem(wrong, self._number, found)

    def _agreed_extent(self) -> Extent:
        """How much all ranks that take part can verify."""
        mine, whole = Extent.ALL, self._whole is not None
        if self._leads:
            count, plan = len(self._step.microbatches), self._preparation.plan
            mine = extent_of(self._root, plan, self._grid, self._uses(), count, whole=whole)
            if self._preparation.delayed:  # no rank ever has the whole model
                mine = max(mine, Extent.IN_PARTS)
        return max(self._gathered(ROOM, mine))

    def _sampled(self) -> int:
        """The microbatch that stands for all: the last one, which shows what earlier ones have left behind. The first one,
        where the forward is to find what earlier ones leave behind."""
        traces = [way.cut.trace for way in self._prepared.ways]
        frozen = any(not parameter.requires_grad for parameter in self._root.parameters())
        changes = any(trace.buffers or trace.counters or trace.tallies or trace.remembers for trace in traces)
        return 0 if frozen or changes else len(self._step.microbatches) - 1

    def _uses(self) -> dict[str, frozenset[str]]:
        """Unit -> names of the parameters that it reads; "" for those that are read between units."""
        found: dict[str, frozenset[str]] = {"": frozenset()}
        for way in self._prepared.ways:
            for event in way.cut.trace.events:
                unit = event.name if event.is_unit else ""
                found[unit] = found.get(unit, frozenset()).union(event.parameters)
        return found

    def _undivided(
        self, values: Mapping[str, torch.Tensor] | None, noise: float = 0.0, seed: int = 0
    ) -> Outcome | str | None:
        """What the undivided model computes from the state at the start of the step; the reason where it does not run. None
        on a rank that only helps. Collective over the pipeline.

        Args:
            values: of all parameters; None if they are to be fetched.
        """
        parts = self._holding.parts
        if self._extent is not Extent.IN_PARTS:
            with self._holding.whole():
                whole = WholeParameters(self._root, fetch_parameters(self._holding) if values is None else values)
                return self._run(whole, noise, seed) if self._leads else None
        # Where modules are divided no rank has its stages whole.
        with self._holding.whole() if parts is None else parts.emptied():
            mine = self._run_in_parts(noise, seed)
        if self._grid.joint is None:
            return mine
        found = in_company(self._grid, UNDIVIDED, mine)[0]
        return found if self._leads else None

    def _run_in_parts(self, noise: float, seed: int) -> Outcome | str | None:
        library = Library(self._holding)
        if not library.leads:
            library.serve()
            return None
        modules = dict(self._root.named_modules())
        uses = self._uses()
        try:
            values: Values = InParts(self._root, uses, {unit: modules[unit] for unit in uses if unit}, library.fetch)
            return self._run(values, noise, seed)
        finally:
            library.end()

    def _run(self, values: Values, noise: float, seed: int) -> Outcome | str:
        device = self._grid.device
        now = self._start
        try:
            if self._step.watch is not None:  # the pipeline has run
                now = Traces(self._root, self._step.function, device)
                self._start.restore()
            there = dict(self._root.named_buffers())
            with torch.no_grad():
                for name, value in self._buffers.items():
                    if name in there:
                        there[name].copy_(value)
                    else:  # a forward has made it on another rank
                        module, _, key = name.rpartition(".")
                        buffers_in(self._root.get_submodule(module))[key] = value.clone()
            gates, copies = self._preparation.frame.gates, any(w.cut.trace.mutates_inputs for w in self._prepared.ways)
            watch = Watch(noise, seed, only=self._only)
            with self._attributes.there():
                return run(
                    *(self._root, gates, self._attach, self._step, device, values),
                    only=self._only,
                    scale=self._scale,
                    copies=copies,
                    watch=watch,
                )
        except (torch.OutOfMemoryError, MemoryError):
            return "the undivided model ran out of memory on one rank"
        except Exception as error:  # if it is the script's own, the pipeline meets it, too
            return f"the undivided model ended with {type(error).__name__}: {shorten(str(error))}"
        finally:
            now.restore()
            if device.type == "cuda":
                torch.cuda.empty_cache()  # pieces of other sizes than the pipeline's

    def _run_again(self) -> Again:
        runs = [self._undivided(None, *kind) for kind in _AGAIN]
        mine = [one for one in runs if isinstance(one, Outcome)]
        found = self._gathered(AGAIN, (self._grid.place.replica, mine))
        return {replica: outcomes for replica, outcomes in found if len(outcomes) == len(_AGAIN)}

    def _findings(self, results: list[Any]) -> Findings:
        watch = self._step.watch
        grid, homes, stages = self._grid, self._holding.buffer_homes(), self._prepared.mine
        here = grid.place.pipeline
        words = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
        if grid.tensor is not None:
            words += f", part {grid.place.tensor}"
        outcome = Outcome(
            outputs=watch.seen if isinstance(watch, Watch) else {},
            again=frozenset(watch.again if isinstance(watch, Watch) else ()),
            results=[results_of(one) if self._only in (None, number) else [] for number, one in enumerate(results)],
            buffers={n: sketch(b) for n, b in self._root.named_buffers() if homes.get(n) == here and not b.is_meta},
            parameters=self._parameters,
        )
        if self._prepared.training:
            outcome.trained = tuple(self._held())
            outcome.gradients = self._gradients()
        if self._only is not None:
            outcome.buffers = {}  # of all microbatches
        arrived = self._contributions
        return Findings(
            *(self._grid.rank, self._grid.place.replica, words, outcome, self._before, self._reference, self._only),
            of_one=arrived.of_one if arrived is not None else {},
            of_all=arrived.of_all if arrived is not None else {},
            beside=self._beside(),
        )

    def _beside(self) -> tuple[int, ...]:
        """Replicas that divide the sequences of a batch with this one; none without context groups."""
        grid = self._grid
        if grid.context is None:
            return ()
        company = [grid.places[rank] for rank in grid.company_ranks]
        return tuple(sorted({place.replica for place in company if place.tensor == grid.place.tensor}))

    def _held(self) -> dict[str, torch.Tensor]:
        """Parameters of this rank whose gradients can be compared: hooks that wait for gradients may change them."""
        return {
            name: parameter
            for name, parameter in self._holding.parameters.items()
            if parameter.requires_grad and not accumulated_hooks(parameter)
        }

    def _gradients(self) -> dict[str, Sketch]:
        """Of this rank's parameters; as of now."""
        held = self._held()
        found = self._holding.gradients()
        return {name: sketch(one).rounded_as(held[name].dtype) for name, one in found if name in held}

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

    def _gathered(self, at: str, mine: Any) -> list[Any]:
        grid = self._grid
        if self._together:
            return objects(at, mine, range(grid.world), grid.control_group, torch.device("cpu"))
        return in_company(grid, at, mine)

    def _say(self, line: str) -> None:
        if self._grid.rank == 0 and line not in self._said:
            print(line, flush=True)
        self._said.add(line)


def _form_of(prepared: Prepared) -> str:
    """The same for forwards that do the same with tensors of other shapes."""
    digest = hashlib.sha256(repr((prepared.training, prepared.random, prepared.draws)).encode())
    for way in prepared.ways:
        trace = way.cut.trace
        digest.update(repr((way.cut.starts, sorted(trace.reached))).encode())
        for event in trace.events:
            digest.update(repr((event.name, event.position, event.replicated)).encode())
    return digest.hexdigest()
