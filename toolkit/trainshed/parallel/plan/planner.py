"""Makes a plan: chooses units, measures them, partitions, predicts."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from trainshed.contract.wire.pipeline import V_SHAPED

from ..delayed.shapes import ShapesOnly
from ..errors import PlanError, TooFewParts
from ..record.naming import first_name
from ..record.subject import Subject
from ..record.trace import Trace
from .calltree import Call, CallTree, choose_units
from .costs import LAST_MESSAGES, OVERHEAD, Costs, Link, StageCosts, costs_of
from .partition import Request, partition
from .plan_file import Plan, PlanUnit, model_fingerprint
from .profile import SECONDS_PER_BYTE, SECONDS_PER_OPERATION, profile
from .simulate import ZERO_BUBBLE, most_kept, order, step_seconds
from .work import seat_of

MIB = 2**20
# A stage this much slower than an even share is worth another try with finer units.
_UNEVEN = 1.03


@dataclass(frozen=True)
class Wish:
    """What the job asks of a plan.

    ranks, virtual: pipeline ranks and stages on each of them.
    asked: what `virtual` was, where the model has not enough parts for that; else 0.
    schedule: "gpipe", "1f1b", "interleaved1f1b", "interleavedzerobubble", "zbvzerobubble" or "dualpipev".
    memory_limit: bytes a stage may take, or None.
    optimizer_states: tensors of the parameter's size that the optimizer keeps (Adam: 2).
    pins: module name -> stage.
    atomic: modules that shall not be opened.
    opens: a container that takes more than this share of the forward is opened, also where there is one stage.
    """

    ranks: int
    virtual: int = 1
    schedule: str = "1f1b"
    microbatches: int = 4
    memory_weight: float = 0.0
    memory_limit: int | None = None
    optimizer_states: int = 2
    pins: Mapping[str, int] = field(default_factory=dict)
    atomic: tuple[str, ...] = ()
    link: Link = field(default_factory=Link)
    asked: int = 0
    opens: float = 1.0

    @property
    def stages(self) -> int:
        """Number of stages in the pipeline."""
        return self.ranks * self.virtual

    def seat(self, stage: int) -> int:
        """The rank that has a stage."""
        return seat_of(stage, self.ranks, self.schedule)

    def request(self, closed: Mapping[str, str]) -> Request:
        """As the partitioner reads it.

        Args:
            closed: modules that are not opened, with the reason.
        """
        memory = self.memory_weight, self.memory_limit
        return Request(self.stages, self.in_flight(), *memory, dict(self.pins), self.link, closed)

    def in_flight(self) -> tuple[int, ...]:
        """Microbatches whose activations each stage keeps at once."""
        if self.schedule in ZERO_BUBBLE:
            orders = order(self.schedule, self.ranks, self.virtual, self.microbatches)
            if self.schedule in V_SHAPED:
                return tuple(most_kept(orders[self.seat(stage)], stage) for stage in range(self.stages))
            most = [-(-most_kept(work) // self.virtual) for work in orders]
            return tuple(most[stage % self.ranks] for stage in range(self.stages))
        kept = []
        for stage in range(self.stages):
            if self.schedule == "gpipe":
                kept.append(self.microbatches)
            elif self.virtual == 1:
                kept.append(min(self.stages - stage, self.microbatches))
            else:
                warm = (self.ranks - stage % self.ranks - 1) * 2 + (self.virtual - 1) * self.ranks + 1
                kept.append(min(-(-warm // self.virtual), self.microbatches))
        return tuple(kept)


@contextmanager
def _young_only() -> Iterator[None]:
    """Within this context Python looks for unreachable cycles among young objects only. A plan makes many objects that stay:
    to look through all there are each time that their number has grown by a quarter took a fifth of a large model's plan."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 50_000), before[1], 10**9)
    try:
        yield
    finally:
        gc.set_threshold(*before)


# A note in plans whose times were counted.
COUNTED = (
    f"operations were counted, not timed: at {1 / SECONDS_PER_OPERATION:.0e} a second, and {1 / SECONDS_PER_BYTE:.0e} bytes "
    "of memory a second; on your devices all times are longer or shorter by much the same factor"
)


@_young_only()
def make_plan(subject: Subject, wish: Wish) -> Plan:
    """Profiles the model on one microbatch and partitions it.

    Where it has not enough parts for several stages on each rank, ranks get fewer; a note in the plan says so. Not where
    modules were put on stages by number, for the numbers would mean something else.

    Raises:
        PlanError: the model has too few parts, or no partition satisfies the wish.
    """
    with _counting(subject) as notes:
        plan = _made(subject, wish)
    return replace(plan, notes=(*notes, *plan.notes))


@_young_only()
def make_plans(subject: Subject, wishes: Sequence[Wish]) -> list[Plan | PlanError]:
    """A plan for each wish, from one profile that is as fine as the first wish asks; an error where there is none.

    Args:
        wishes: the one with most stages first; at least one.
    """
    found: list[Plan | PlanError] = []
    kept: list[_Measured] = []
    with _counting(subject) as notes:
        closed = _closed(subject, wishes[0])
        measured: Iterable[_Measured] = _measured(subject, _called(subject), wishes[0], closed, kept)
        for wish in wishes:
            try:
                if wish.stages == 1:
                    one = kept[0] if kept else next(iter(measured))
                    found.append(describe(one.trace, subject, one.costs, (0,), wish, one.closed))
                else:
                    found.append(_best(measured, subject, wish))
            except PlanError as error:
                found.append(error)
            measured = kept
    return [one if isinstance(one, PlanError) else replace(one, notes=(*notes, *one.notes)) for one in found]


@contextmanager
def _counting(subject: Subject) -> Iterator[list[str]]:
    """Where operations are counted no value is computed; gives what a plan has to note about that, afterwards."""
    notes: list[str] = []
    if not subject.counts:
        yield notes
        return
    with ShapesOnly(subject.root.parameters()) as shapes:
        yield notes
    notes.append(COUNTED)
    if shapes.asked:
        zeros = "the forward asks for values, and was given zeros: what it decides by them may be planned wrongly"
        notes.append(f"{zeros} ({', '.join(sorted(shapes.asked))})")


def _closed(subject: Subject, wish: Wish) -> dict[str, str]:
    return {first_name(subject.root, name): "asked for" for name in wish.atomic}


def _called(subject: Subject) -> Call:
    """The modules that a forward calls, with the time of each."""
    subject.attach(_Nothing())
    try:
        calls = CallTree(subject.root, counts=subject.counts)
        with calls.watching():
            for _ in range(2):  # the first forward also compiles, and sets up what is made once
                with subject.untouched():
                    tree = calls.run(subject.function, *subject.inputs())
    finally:
        subject.attach(None)
    return tree


def _made(subject: Subject, wish: Wish) -> Plan:
    tree, closed = _called(subject), _closed(subject, wish)
    if wish.stages == 1:
        trace, closed = _record(subject, tree, wish.opens, closed, {}, set())
        assert trace is not None
        return describe(trace, subject, costs_of(trace, subject.root, wish.optimizer_states), (0,), wish, closed)
    kept: list[_Measured] = []
    try:
        return _best(_measured(subject, tree, wish, closed, kept), subject, wish)
    except TooFewParts as error:
        for virtual in range(wish.virtual - 1, 0, -1) if not wish.pins else ():
            fewer = replace(wish, virtual=virtual, asked=wish.virtual)
            with suppress(PlanError):
                plan = _best(kept, subject, fewer)
                each = f"{virtual} stage{'s' if virtual > 1 else ''} instead of {wish.virtual}"
                return replace(plan, notes=(f"each rank has {each}: {error.message}", *plan.notes))
        raise


@dataclass(frozen=True)
class _Measured:
    """A record with the costs of its units, and the modules that were kept whole."""

    trace: Trace
    costs: Costs
    closed: dict[str, str]


def _measured(
    subject: Subject, tree: Call, wish: Wish, closed: dict[str, str], kept: list[_Measured]
) -> Iterator[_Measured]:
    """The model by finer and finer units, each as it is asked for; they are added to `kept`."""
    largest, seen = 1 / (2 * wish.stages), set[tuple[str, ...]]()
    for _attempt in range(6):
        trace, closed = _record(subject, tree, largest, closed, wish.pins, seen)
        largest /= 3
        if trace is not None:
            kept.append(_Measured(trace, costs_of(trace, subject.root, wish.optimizer_states), closed))
            yield kept[-1]


def _best(measured: Iterable[_Measured], subject: Subject, wish: Wish) -> Plan:
    """The most even plan, up to the first that is even enough.

    Raises:
        PlanError: there is none.
    """
    best: Plan | None = None
    problem: PlanError | None = None
    for one in measured:
        try:
            starts = partition(one.costs, wish.request(one.closed))
        except PlanError as error:
            problem = error
            continue
        plan = describe(one.trace, subject, one.costs, starts, wish, one.closed)
        if best is None or plan.predicted["slowest_over_ideal"] < best.predicted["slowest_over_ideal"] - 0.02:
            best = plan
        if best.predicted["slowest_over_ideal"] < _UNEVEN:
            break
    if best is None:
        raise problem or PlanError("no partition was found")
    return best


class _Nothing:
    def backward(self, losses: object) -> None:
        """Nothing runs backward while modules are timed."""


def _record(
    subject: Subject,
    tree: Call,
    largest: float,
    closed: dict[str, str],
    pins: Mapping[str, int],
    seen: set[tuple[str, ...]],
) -> tuple[Trace | None, dict[str, str]]:
    """A measured trace; None where its units were measured before. Containers whose glue decides by values are closed on the
    way.

    Args:
        seen: what was measured before; what this call measures is added.
    """
    closed = dict(closed)
    while True:
        units = tuple(sorted(choose_units(tree, subject.root, largest, closed, pins)))
        if units in seen:
            return None, closed
        seen.add(units)
        trace = profile(subject, units)
        fresh = {name: reason for name, reason in trace.atomic.items() if name not in closed}
        if not fresh:
            return trace, closed
        closed.update(fresh)


def describe(
    trace: Trace, subject: Subject, costs: Costs, starts: tuple[int, ...], wish: Wish, closed: dict[str, str]
) -> Plan:
    """The plan for a partition, with its prediction."""
    count = len(costs.units)
    ends = (*starts[1:], count)
    stage_of = [stage for stage, (first, last) in enumerate(zip(starts, ends, strict=True)) for _ in range(first, last)]
    units = tuple(
        PlanUnit(
            unit.unit,
            unit.call,
            stage_of[position],
            round(unit.forward * 1e3, 4),
            round(unit.backward * 1e3, 4),
            round(unit.saved / MIB, 3),
            round(sum(costs.sizes.get(name, 0) for name in unit.parameters) / MIB, 3),
        )
        for position, unit in enumerate(costs.units)
    )
    boundaries = []
    for stage, cut in enumerate(starts[1:]):
        values = [trace.values[number].meta for number in trace.boundary(cut)]
        sent = [{"shape": list(meta.shape), "dtype": str(meta.dtype).removeprefix("torch.")} for meta in values]
        boundaries.append({"from": stage, "to": stage + 1, "bytes": sum(meta.bytes for meta in values), "values": sent})
    used: dict[str, set[int]] = {}
    for position, unit in enumerate(costs.units):
        for name in unit.parameters:
            used.setdefault(name, set()).add(stage_of[position])
    shared = tuple({"parameter": name, "stages": sorted(stages)} for name, stages in sorted(used.items()) if len(stages) > 1)
    predicted = predict(costs, starts, wish)
    return Plan(
        model=model_fingerprint(subject.root),
        pipeline={
            "ranks": wish.ranks,
            "virtual": wish.virtual,
            "schedule": wish.schedule,
            "microbatches": wish.microbatches,
            **({"asked": wish.asked} if wish.asked else {}),
        },
        units=units,
        atomic=dict(sorted(closed.items())),
        overrides=dict(sorted(wish.pins.items())),
        boundaries=tuple(boundaries),
        shared=shared,
        predicted=predicted,
        notes=tuple(_notes(costs, predicted, wish, closed)),
    )


def predict(costs: Costs, starts: tuple[int, ...], wish: Wish) -> dict[str, object]:
    """Milliseconds of a step and of each stage, the bubble, MiB of each stage."""
    ends = (*starts[1:], len(costs.units))
    ranges = list(zip(starts, ends, strict=True))
    forward = [sum(u.forward for u in costs.units[a:b]) + costs.everywhere for a, b in ranges]
    backward = [sum(u.backward for u in costs.units[a:b]) for a, b in ranges]
    talk = [
        wish.link.seconds(costs.crossing[cut]) if wish.seat(stage) != wish.seat(stage + 1) else 0.0
        for stage, cut in enumerate(starts[1:])
    ] + [0.0]
    orders = order(wish.schedule, wish.ranks, wish.virtual, wish.microbatches)
    several = len(ranges) > 1
    own = OVERHEAD if several else (0.0, 0.0)
    later = [0.0] * len(ranges)
    if wish.schedule in ZERO_BUBBLE:
        # A matrix product takes as long for its weight's gradient as for its input's. Nobody waits for the first stage's.
        later = [sum(u.backward / 2 for u in costs.units[a:b] if u.parameters) for a, b in ranges]
        later[0] = backward[0]
    now = [b - w + own[1] for b, w in zip(backward, later, strict=True)]
    worked, busy = step_seconds(orders, [f + own[0] for f in forward], now, talk, [w + own[1] for w in later])
    seconds = worked + (LAST_MESSAGES * wish.link.latency if several else 0.0)
    tables = StageCosts(costs, wish.link)
    memory = [float(tables.memory(kept)[a, b]) for (a, b), kept in zip(ranges, wish.in_flight(), strict=True)]
    even = (costs.seconds + costs.everywhere * len(ranges)) / len(ranges)
    slowest = max(f + b for f, b in zip(forward, backward, strict=True))
    return {
        "step_ms": round(seconds * 1e3, 3),
        "bubble": round(1 - sum(busy) / (seconds * wish.ranks), 4) if seconds else 0.0,
        "slowest_over_ideal": round(slowest / even, 4) if even else 1.0,
        "stages": [
            {"stage": s, "forward_ms": round(f * 1e3, 3), "backward_ms": round(b * 1e3, 3), "memory_mib": round(m / MIB, 2)}
            for s, (f, b, m) in enumerate(zip(forward, backward, memory, strict=True))
        ],
    }


def _notes(costs: Costs, predicted: dict[str, object], wish: Wish, closed: dict[str, str]) -> list[str]:
    notes = [f"{name} is kept whole: {reason}" for name, reason in sorted(closed.items()) if reason != "asked for"]
    even = costs.seconds / wish.stages
    for unit in costs.units:
        seconds = unit.forward + unit.backward
        if wish.stages > 1 and seconds > 1.1 * even:
            share = 100 * seconds / costs.seconds
            notes.append(
                f"{unit.unit} alone is {share:.0f} % of the work, an even stage would be {100 / wish.stages:.0f} %: "
                "no partition can be even. Fewer stages, a smaller module (for a language model's head: a smaller "
                "vocabulary, or a head that works on parts of the sequence) or activation checkpoints elsewhere would help"
            )
    return notes
