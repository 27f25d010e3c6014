"""Compares what a pipelined step has computed with what the undivided model computes, and says what differs, in words.

What is allowed is what rounding explains. First a part of the length of a tensor that sums in another order do not reach.
Where more differs, the undivided model runs again: twice as it is, for operations that give another result every time, and
twice with the results of its modules moved by the last bit, for what that makes of rounding (a route of a mixture of experts
that was a tie, a gradient that is a difference of large numbers). What these runs differ by is allowed as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...ground.errors import PipelineError
from .reference_step import Outcome
from .tensor_digest import NOTHING, Sketch, total
from .unit_outputs import Call

_ORDER = 64  # units of rounding that sums in another order may differ by, in a type of 4 bytes or more
_SPREAD = 8  # what the runs of the undivided model differ by, times this

PARAMETER, OUTPUT, RESULT, BUFFER, GRADIENT, SUM = range(6)  # in the order in which one follows from the other


@dataclass
class Findings:
    """The findings of one rank.

    stages: of this rank, in words.
    outcome: what the pipelined step has computed here.
    before: gradients that were there before the step.
    reference: what the undivided model computes; on the first rank of each pipeline.
    only: the microbatch that the undivided model computes; None for all of them.
    of_one, of_all: where it is one, what that microbatch has added to gradients here, and what all have.
    beside: replicas that divide the sequences of one batch with this one, itself among them: a gradient is the mean of what
        arrives at them. Empty where there are none.
    """

    rank: int
    replica: int
    stages: str
    outcome: Outcome
    before: dict[str, Sketch] = field(default_factory=dict)
    reference: Outcome | None = None
    only: int | None = None
    of_one: dict[str, Sketch] = field(default_factory=dict)
    of_all: dict[str, Sketch] = field(default_factory=dict)
    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class Order:
    """calls: (unit, number of its call) -> its place in the forward; uses: parameter -> the place of its first use."""

    calls: Mapping[tuple[str, int], int]
    uses: Mapping[str, int]

    def of_buffer(self, name: str) -> int:
        """The place of the first call of the unit that has it."""
        return min((at for (unit, _), at in self.calls.items() if not unit or name.startswith(f"{unit}.")), default=0)


@dataclass(frozen=True)
class Difference:
    """place: sorts by what comes first. distance and allowed: parts of the length of what is right. retyped: it has another
    type."""

    place: tuple[int, int, int]
    name: str
    finding: Findings
    microbatch: int
    distance: float
    allowed: float
    factor: float
    retyped: bool = False

    @property
    def kind(self) -> int:
        """PARAMETER to SUM."""
        return self.place[0]


Again = Mapping[int, Sequence[Outcome]]  # replica -> runs of the undivided model, the first two as it is
_Pick = Callable[[Outcome], Sketch]


def differences(found: Sequence[Findings], order: Order, again: Again | None = None) -> list[Difference]:
    """Lists what differs by more than rounding, first what the rest may follow from.

    Where the undivided model has computed one microbatch, its part of the gradients is compared, and the gradients with the
    sum of the parts of all microbatches.

    Args:
        found: of all ranks of all pipelines that take part.
        again: further runs, for what rounding does.
    """
    references = {one.replica: one.reference for one in found if one.reference is not None}
    first = min(references)
    wrong: list[Difference] = []

    def compare(
        kind: int,
        at: int,
        name: str,
        one: Findings,
        have: Sketch,
        pick: _Pick,
        among: Sequence[int],
        microbatch: int = 0,
        alike: Sequence[_Pick] = (),
    ) -> None:
        """`have` against the mean of what the replicas `among` compute; `alike` is the same of other microbatches."""
        before = one.before.get(name, NOTHING) if kind == GRADIENT and one.only is None else NOTHING
        want = before.plus(total(pick(references[replica]) for replica in among).times(1 / len(among)))
        spread = 0.0
        for replica in among if again else ():
            runs = again[replica] if again else ()
            spread += max(_spread([one_of(run) for run in runs]) for one_of in (pick, *alike)) / len(among)
        distance, length = have.distance(want), max(want.length, have.length)
        allowed = rounding(max(have.unit, want.unit)) * length + _SPREAD * spread
        # Gradients are summed in float32 in some ways.
        retyped = kind in (OUTPUT, RESULT) and NOTHING not in (have, want) and have.unit != want.unit
        if retyped or not distance <= allowed:
            scale, factor = want.length or 1.0, factor_of(have, want)
            place = (kind, at, microbatch)
            wrong.append(Difference(place, name, one, microbatch, distance / scale, allowed / scale, factor, retyped))

    for one in found:
        own = [one.replica]
        for name, have in one.outcome.parameters.items():
            # Those of other replicas, too: all of them have the same parameters.
            for replica in dict.fromkeys((one.replica, first)):
                if name in references[replica].parameters:
                    compare(PARAMETER, order.uses.get(name, 0), name, one, have, _named("parameters", name), [replica])
        for (microbatch, unit, call), sketches in one.outcome.outputs.items():
            if (microbatch, unit, call) in one.outcome.again.difference(references[one.replica].outputs):
                continue
            for number, have in enumerate(sketches):
                # A microbatch may happen to have no tie; those beside it have.
                every = [_output((other, unit, call), number) for other in range(len(one.outcome.results))]
                at = order.calls.get((unit, call), 0)
                compare(OUTPUT, at, unit, one, have, _output((microbatch, unit, call), number), own, microbatch, every)
        for microbatch, results in enumerate(one.outcome.results):
            for number, have in enumerate(results):
                every = [_result(other, number) for other in range(len(one.outcome.results))]
                compare(RESULT, number, "", one, have, every[microbatch], own, microbatch, every)
        for name, have in one.outcome.buffers.items():
            if name in references[one.replica].buffers:
                compare(BUFFER, order.of_buffer(name), name, one, have, _named("buffers", name), own)
        for name in one.outcome.trained:
            have = one.outcome.gradients.get(name, NOTHING)
            # Errors of a backward pass on to what comes before: the last module is the first that has one.
            at, pick = -order.uses.get(name, 0), _named("gradients", name)
            if one.only is None:
                compare(GRADIENT, at, name, one, have, pick, sorted(references))
                continue
            beside = one.beside or (one.replica,)
            part = total(other.of_one[name] for other in found if other.replica in beside and name in other.of_one)
            part = part.times(1 / len(beside))
            compare(GRADIENT, at, name, one, part, pick, own, one.only)
            wrong += _sums(at, name, one, have, found)
    return sorted(wrong, key=lambda one: (one.place, one.finding.rank))


def _sums(at: int, name: str, one: Findings, have: Sketch, found: Sequence[Findings]) -> list[Difference]:
    """A difference, if a gradient is not the sum of what has arrived at all ranks, in the mean of the replicas."""
    replicas = {other.replica for other in found}
    arrived = total(other.of_all[name] for other in found if name in other.of_all).times(1 / len(replicas))
    want = one.before.get(name, NOTHING).plus(arrived)
    distance = have.distance(want)
    microbatches = len(one.outcome.results)
    allowed = rounding(max(have.unit, want.unit)) * max(want.length, have.length) * microbatches  # each is added to a sum
    if distance <= allowed:
        return []
    scale = want.length or 1.0
    return [Difference((SUM, at, 0), name, one, 0, distance / scale, allowed / scale, factor_of(have, want))]


def unsteady(again: Again) -> str:
    """The first unit or parameter whose output or gradient is another one when the undivided model runs twice; empty if
    there is none."""
    for one, other, *_ in again.values():
        for (microbatch, unit, call), sketches in one.outputs.items():
            made = other.outputs.get((microbatch, unit, call), [])
            if any(_differ(a, b) for a, b in zip(sketches, made, strict=False)):
                return unit
        for name, sketch in one.gradients.items():
            if _differ(sketch, other.gradients.get(name, NOTHING)):
                return name
    return ""


def problem(wrong: Sequence[Difference], step: int, found: Sequence[Findings]) -> PipelineError:
    """The error for a step whose results are wrong.

    Args:
        wrong: not empty, sorted.
        step: its number, from 1.
    """
    module = _module(wrong[0])
    keep = f"keep the module whole (atomic = [{module!r}]), or " if module else ""
    return PipelineError(
        f"step {step} is not right, no parameter was changed: {described(wrong, found)}",
        hint=f'report this with the model; until then {keep}go on without this check (verify = "off")',
    )


def described(wrong: Sequence[Difference], found: Sequence[Findings]) -> str:
    """The first difference in words, and how many there are."""
    worst = wrong[0]
    module = _module(worst)
    told = worst.kind in (OUTPUT, RESULT) or (worst.kind == GRADIENT and worst.finding.only is not None)
    microbatch = f" in microbatch {worst.microbatch}" if told else ""
    where = f"on rank {worst.finding.rank}, {worst.finding.stages}{microbatch}"
    what = {
        PARAMETER: f"parameter {worst.name!r} {where} is not the model's own",
        OUTPUT: f"module {module!r} {where} gave another output than in the undivided model",
        RESULT: f"the step function's result {where} is not that of the undivided model",
        BUFFER: f"buffer {worst.name!r} of module {module!r} {where} is not that of the undivided model",
        GRADIENT: f"the gradient of {worst.name!r} (module {module!r}) {where} is not that of the undivided model",
        SUM: f"the gradient of {worst.name!r} (module {module!r}) {where} is not the sum of what its microbatches gave",
    }[worst.kind]
    amount = f"the difference is {worst.distance:.1e} of its size, rounding explains {worst.allowed:.1e}"
    if worst.retyped:
        amount = "it has another dtype"
    elif math.isfinite(worst.factor) and abs(worst.factor - 1) > 0.01:
        amount += f"; it is {worst.factor:.3g} times what it should be"
    return f"{what}: {amount}{_others(wrong, found)}"


def _module(worst: Difference) -> str:
    return worst.name if worst.kind == OUTPUT else worst.name.rpartition(".")[0]


def _others(wrong: Sequence[Difference], found: Sequence[Findings]) -> str:
    gradients = {one.name for one in wrong if one.kind in (GRADIENT, SUM)}
    every = {name for one in found for name in one.outcome.trained}
    units = {one.name for one in wrong if one.kind == OUTPUT}
    parts = []
    if len(units) > 1:
        parts.append(f"outputs of {len(units)} modules")
    if gradients and (len(gradients) > 1 or wrong[0].kind not in (GRADIENT, SUM)):
        parts.append(f"{len(gradients)} of {len(every)} gradients")
    return f" (wrong in all: {', '.join(parts)})" if parts else ""


def _output(call: Call, number: int) -> _Pick:
    def pick(run: Outcome) -> Sketch:
        made = run.outputs.get(call, [])
        return made[number] if number < len(made) else NOTHING

    return pick


def _result(microbatch: int, number: int) -> _Pick:
    def pick(run: Outcome) -> Sketch:
        made = run.results[microbatch] if microbatch < len(run.results) else []
        return made[number] if number < len(made) else NOTHING

    return pick


def _named(kind: str, name: str) -> _Pick:
    def pick(run: Outcome) -> Sketch:
        found: Sketch = getattr(run, kind).get(name, NOTHING)
        return found

    return pick


def rounding(unit: float) -> float:
    """Returns the part of a tensor's length that rounding may come to, by the unit of rounding of its type."""
    return _ORDER * unit if unit < 1e-5 else unit


def _differ(one: Sketch, other: Sketch) -> bool:
    return not one.distance(other) <= rounding(max(one.unit, other.unit)) * max(one.length, other.length)


def _spread(sketches: Sequence[Sketch]) -> float:
    return max(sketches[0].distance(other) for other in sketches[1:])


def factor_of(have: Sketch, want: Sketch) -> float:
    """What `want` is multiplied by, if that is all that differs; not a number otherwise."""
    square = sum(a * a for a in want.products)
    if not square:
        return math.nan
    factor = sum(a * b for a, b in zip(have.products, want.products, strict=True)) / square
    rest = math.dist(have.products, [factor * a for a in want.products])
    return factor if rest < 1e-3 * math.sqrt(square) else math.nan
