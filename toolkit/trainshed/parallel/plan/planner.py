"""Makes a plan: chooses units, measures them, partitions, predicts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ..delayed.shapes import ShapesOnly
from ..ground.errors import PlanError, TooFewParts
from ..tracing.naming import first_name
from ..tracing.subject import Subject
from ..tracing.trace import Trace
from .calltree import Call, CallTree, choose_units
from .costs import Costs, costs_of, of_rows, of_sequences, recomputed, slowed
from .division import Divided, Foreseen, divided, divided_costs, pieces_of_rows, slowed_pieces
from .partition import partition
from .plan_file import Plan
from .plan_request import Wish
from .prediction import ASKED_FOR, OF_SEQUENCES, describe
from .profile import SECONDS_PER_BYTE, SECONDS_PER_OPERATION, profile
from .runtime import seconds_around

# A stage this much slower than an even share is worth another try with finer units.
_UNEVEN = 1.03


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


def _counted(slower: float) -> str:
    """A note in plans whose times were counted."""
    speeds = 1 / (SECONDS_PER_OPERATION * slower), 1 / (SECONDS_PER_BYTE * slower)
    return (
        f"operations were counted, not timed: at {speeds[0]:.0e} a second, and {speeds[1]:.0e} bytes of memory a second; on "
        "your devices all times are longer or shorter by much the same factor"
    )


# Tells what a tensor group would divide of a subject's model, and between which modules it would gather nothing, if it has
# so many ranks.
Foresee = Callable[[Subject, Sequence[int]], Foreseen]


@_young_only()
def make_plan(subject: Subject, wish: Wish, foresee: Foresee | None = None) -> Plan:
    """Profiles the model on one microbatch and partitions it.

    Where it has not enough parts for several stages on each rank, ranks get fewer; a note in the plan says so. Not where
    modules were put on stages by number, for the numbers would mean something else.

    Args:
        foresee: asked where modules are divided.

    Raises:
        PlanError: the model has too few parts, or no partition satisfies the wish.
    """
    with _counting(subject, wish.slower) as notes:
        plan = _made(subject, wish, _foreseen(subject, [wish], foresee))
    return replace(plan, notes=(*notes, *plan.notes))


@_young_only()
def make_plans(subject: Subject, wishes: Sequence[Wish], foresee: Foresee | None = None) -> list[Plan | PlanError]:
    """A plan for each wish, from one profile that is as fine as the first wish asks; an error where there is none.

    Args:
        wishes: the one with most ranks first; at least one.
        foresee: asked where modules are divided.
    """
    found: list[Plan | PlanError] = []
    kept: list[_Measured] = []
    with _counting(subject, wishes[0].slower) as notes:
        closed, foreseen = _closed(subject, wishes[0]), _foreseen(subject, wishes, foresee)
        measured: Iterable[_Measured] = _measured(subject, _called(subject), wishes[0], closed, kept)
        for wish in wishes:
            try:
                if wish.stages == 1:
                    one = kept[0] if kept else next(iter(measured))
                    found.append(_plan(one, subject, (0,), wish, foreseen))
                else:
                    found.append(_best(measured, subject, wish, foreseen))
            except PlanError as error:
                found.append(error)
            measured = kept
    return [one if isinstance(one, PlanError) else replace(one, notes=(*notes, *one.notes)) for one in found]


@contextmanager
def _counting(subject: Subject, slower: float) -> Iterator[list[str]]:
    """Where operations are counted no value is computed; gives what a plan has to note about that, afterwards."""
    notes: list[str] = []
    if not subject.counts:
        yield notes
        return
    with ShapesOnly(subject.root.parameters()) as shapes:
        yield notes
    notes.append(_counted(slower))
    if shapes.asked:
        zeros = "the forward asks for values, and was given zeros: what it decides by them may be planned wrongly"
        notes.append(f"{zeros} ({', '.join(sorted(shapes.asked))})")


def _closed(subject: Subject, wish: Wish) -> dict[str, str]:
    asked = {first_name(subject.root, name): ASKED_FOR for name in wish.atomic}
    return {**dict.fromkeys(wish.sequences, OF_SEQUENCES), **asked}


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


def _foreseen(subject: Subject, wishes: Sequence[Wish], foresee: Foresee | None) -> Foreseen:
    if foresee is None or all(wish.tensor == 1 for wish in wishes):
        return Foreseen()
    found = foresee(subject, sorted({wish.tensor for wish in wishes if wish.pairs}))
    return replace(found, pieces=slowed_pieces(found.pieces, wishes[0].slower))


def _made(subject: Subject, wish: Wish, foreseen: Foreseen) -> Plan:
    tree, closed = _called(subject), _closed(subject, wish)
    if wish.stages == 1:
        trace, closed = _record(subject, tree, wish.opens, closed, {}, set())
        assert trace is not None
        return _plan(_Measured(trace, _costs(trace, subject, wish), closed), subject, (0,), wish, foreseen)
    kept: list[_Measured] = []
    try:
        return _best(_measured(subject, tree, wish, closed, kept), subject, wish, foreseen)
    except TooFewParts as error:
        for virtual in range(wish.virtual - 1, 0, -1) if not wish.pins else ():
            fewer = replace(wish, virtual=virtual, asked=wish.virtual)
            with suppress(PlanError):
                plan = _best(kept, subject, fewer, foreseen)
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
            kept.append(_Measured(trace, _costs(trace, subject, wish), closed))
            yield kept[-1]


def _costs(trace: Trace, subject: Subject, wish: Wish) -> Costs:
    costs = costs_of(trace, subject.root, wish.optimizer_states, wish.shared)
    if subject.device.type == "cpu" and not subject.counts:
        costs = replace(costs, around=seconds_around(subject, trace))
    return slowed(costs, wish.slower)


def _of_rank(one: _Measured, wish: Wish, foreseen: Foreseen) -> tuple[Costs, Divided]:
    """The costs of one of the ranks that divide each stage, and what they divide."""
    costs = of_rows(one.costs, wish.rows) if wish.rows != 1 else one.costs
    if wish.context > 1:
        costs = of_sequences(costs, wish.sequences, wish.context, wish.link)
    if wish.tensor == 1:
        return costs, Divided(1)
    pieces = pieces_of_rows(foreseen.pieces, wish.rows) if wish.rows != 1 else foreseen.pieces
    kept = foreseen.kept.get(wish.tensor, 1.0) if wish.pairs else 1.0
    found = divided(pieces, wish.tensor, pairs=wish.pairs, kept=kept)
    return divided_costs(costs, found, wish.tensor_link), found


def _plan(one: _Measured, subject: Subject, starts: tuple[int, ...], wish: Wish, foreseen: Foreseen) -> Plan:
    costs, found = _of_rank(one, wish, foreseen)
    plan = describe(one.trace, subject, costs, starts, wish, one.closed, found)
    if wish.tensor > 1 and wish.stages == 1:  # its first step runs the whole model on every rank
        whole = sum(one.costs.values.values()) + sum(one.costs.gradients.values())
        first = whole + sum(unit.saved for unit in one.costs.units)
        plan = replace(plan, predicted={**plan.predicted, "first_mib": round(first / 2**20, 2)})
    return plan


def _best(measured: Iterable[_Measured], subject: Subject, wish: Wish, foreseen: Foreseen) -> Plan:
    """The most even plan, up to the first that is even enough.

    Raises:
        PlanError: there is none.
    """
    best: Plan | None = None
    problem: PlanError | None = None
    for one in measured:
        try:
            costs, divided_here = _of_rank(one, wish, foreseen)
            starts = partition(recomputed(costs) if wish.recomputes else costs, wish.request(one.closed))
        except PlanError as error:
            problem = error
            continue
        plan = describe(one.trace, subject, costs, starts, wish, one.closed, divided_here)
        if best is None or plan.predicted["slowest_over_ideal"] < best.predicted["slowest_over_ideal"] - 0.02:
            best = plan
        # A module keeps the less for running again, the more lies between its input and its result.
        if best.predicted["slowest_over_ideal"] < _UNEVEN or wish.recomputes:
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
