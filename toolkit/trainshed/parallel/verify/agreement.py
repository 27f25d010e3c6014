"""Whether N ranks and one process agree, and where they first do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..engine.verify.comparing import factor_of
from ..engine.verify.tensor_digest import NOTHING, Sketch
from .evidence import COMPRESSED, STAGES, Evidence, Pass, Sketches, Update

_CLOSE = 1e-3  # of the length of what is compared, in float32
_UNITS = 8  # of rounding, for shorter types
_COMPRESSED = 0.02  # what a hook may leave of gradients
_GROWS = 3  # what a step makes of differences
_MOVED = 0.02  # of an update: Adam divides by what may be rounding alone
_SAME = 1e-6


@dataclass(frozen=True)
class Mismatch:
    """What is not the same in step `step`: `name` is the first of `count` of `every`.

    kind: outputs, losses, made, taken, norms, rates, moved or buffers. rank: the first rank where it is so.
    factor: what the one process' value is multiplied by, if that is all; not a number otherwise.
    """

    kind: str
    step: int
    name: str = ""
    rank: int = 0
    distance: float = 0.0
    factor: float = math.nan
    count: int = 1
    every: int = 1


@dataclass
class Compared:
    """All that two ways of running a script have in common, and what they have not.

    among: the first difference among the ranks, by kind. apart: from the one process. checked: what was compared with it.
    why_not: why the one process says nothing; empty if it does.
    """

    ranks: list[Evidence]
    alone: Evidence | None
    among: dict[str, Mismatch] = field(default_factory=dict)
    apart: dict[str, Mismatch] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    why_not: str = ""

    @property
    def replicas(self) -> list[Evidence]:
        """Ranks that have batches of their own: one of each tensor group."""
        return [one for one in self.ranks if one.rank == min([one.rank, *one.twins])]

    @property
    def in_stages(self) -> bool:
        """Whether ranks run other parts of the model."""
        return any(STAGES in one.ways for one in self.ranks)

    @property
    def divided_by_hand(self) -> bool:
        """Whether the script has cut the model into other shapes for each rank."""
        return self.alone is not None and self.alone.by_hand

    def passes(self) -> list[list[Pass]]:
        """Of the replicas, those that belong together, in order."""
        found = []
        for step in range(min((len(one.updates) for one in self.ranks), default=0)):
            every = [one.updates[step].passes for one in self.replicas]
            found += [list(together) for together in zip(*every, strict=False)]
        return found


def compared(ranks: list[Evidence], alone: Evidence | None) -> Compared:
    """The differences of ranks from each other, and from one process."""
    found = Compared(ranks, alone)
    steps = min((len(one.updates) for one in ranks), default=0)
    for step in range(steps):
        for kind in ("made", "taken", "moved", "buffers"):
            if kind not in found.among and (difference := _among(ranks, step, kind)) is not None:
                found.among[kind] = difference
    found.why_not = _why_not(found)
    if alone is not None and not found.why_not:
        _compare(found, alone, steps)
    return found


def _among(ranks: Sequence[Evidence], step: int, kind: str) -> Mismatch | None:
    first: Sketches = getattr(ranks[0].updates[step], kind)
    for one in ranks[1:]:
        own: Sketches = getattr(one.updates[step], kind)
        names = list(dict.fromkeys([*first, *own]))
        wrong = [name for name in names if not close(own.get(name, NOTHING), first.get(name, NOTHING), _SAME)]
        if wrong:
            a, b = own.get(wrong[0], NOTHING), first.get(wrong[0], NOTHING)
            return Mismatch(kind, step, wrong[0], one.rank, part(a, b), factor_of(a, b), count=len(wrong), every=len(names))
    return None


def _why_not(found: Compared) -> str:
    alone = found.alone
    if found.in_stages:
        return "the model is in stages: each rank has parameters of its own"
    if alone is None or not all(one.updates for one in found.ranks):
        return "the ranks took no step together"
    if alone.error and not alone.updates:
        return f"as one process the script ended with {alone.error}"
    if not alone.updates:
        return "as one process the script took no step"
    if any(passing.draws for update in found.ranks[0].updates for passing in update.passes):
        return "the model draws random numbers in its forward, of other shapes on a rank"
    for step, (one, other) in enumerate(zip(alone.updates, found.ranks[0].updates, strict=False)):
        if len(one.passes) != len(other.passes):
            return f"as one process a step has {len(one.passes)} forwards, and {len(other.passes)} on a rank"
        for at, its in enumerate(one.passes):
            theirs = [rank.updates[step].passes for rank in found.replicas if len(rank.updates) > step]
            rows = [row for passes in theirs if at < len(passes) for row in passes[at].rows]
            if sorted(rows) != sorted(its.rows) and not _filled_up(rows, its.rows, alone):
                return (
                    f"the one process had other batches in step {step + 1}: {len(its.rows)} rows, and the ranks {len(rows)} "
                    "(the script makes them without a DataLoader, or cuts them for the ranks itself)"
                )
    return ""


def _filled_up(rows: list[str], its: list[str], alone: Evidence) -> bool:
    """Whether rows of several widths have been joined: those of one rank are the same."""
    return len(rows) == len(its) and bool(set(rows) & set(its))


def _compare(found: Compared, alone: Evidence, steps: int) -> None:
    _add(found, [_outputs(found.ranks, alone.updates[0])])
    for step in range(min(steps, len(alone.updates))):
        _add(found, _of_step(found, alone.updates[step], step))
        if "moved" in found.apart:
            break  # with other weights all that comes is another thing
    found.checked = ["losses", "gradients", *(["clipped norm"] if alone.updates[0].norms else []), "weights"]


def _add(found: Compared, differences: Sequence[Mismatch | None]) -> None:
    for one in differences:
        if one is not None:
            found.apart.setdefault(one.kind, one)


def _of_step(found: Compared, alone: Update, step: int) -> list[Mismatch | None]:
    ranks = [one.updates[step] for one in found.ranks]
    wide = tolerance(found.ranks) * _GROWS**step
    return [
        _losses([one.updates[step] for one in found.replicas], alone, step, wide),
        _tensors("made", ranks, alone, step, wide),
        _tensors("taken", ranks, alone, step, wide),
        _norms(ranks, alone, step, wide),
        _rates(ranks, alone, step),
        _tensors("moved", ranks, alone, step, max(wide, _MOVED)),
        _tensors("buffers", ranks, alone, step, wide),
    ]


def tolerance(ranks: Sequence[Evidence]) -> float:
    """Part of a length that rounding may come to, by the shortest type that modules have given."""
    units = [one.unit for rank in ranks for step in rank.updates[:1] for one in _given(step)]
    lossy = any(COMPRESSED in one.ways for one in ranks)
    return max(_CLOSE, _COMPRESSED * lossy, _UNITS * max(units, default=0.0))


def _given(step: Update) -> list[Sketch]:
    return [one for passing in step.passes[:1] for _, sketches in passing.outputs.values() for one in sketches]


def _outputs(ranks: Sequence[Evidence], alone: Update) -> Mismatch | None:
    if not alone.passes or not all(rank.updates[0].passes for rank in ranks):
        return None  # it is stepped without a forward
    wide = tolerance(ranks)
    first = alone.passes[0].outputs
    for name, (shape, sketches) in first.items():
        for number, rank in enumerate(ranks):
            own = rank.updates[0].passes[0].outputs.get(name)
            if own is None or own[0] != shape or number >= len(sketches):
                continue
            have, want = own[1][0], sketches[number]
            if not close(have, want, wide):
                return Mismatch("outputs", 0, name, rank.rank, part(have, want), factor_of(have, want), every=len(first))
    return None


def _losses(replicas: Sequence[Update], alone: Update, step: int, wide: float) -> Mismatch | None:
    for at, its in enumerate(alone.passes):
        values = [one.passes[at].loss for one in replicas if at < len(one.passes)]
        known = [value for value in values if value is not None]
        if its.loss is None or len(known) < len(replicas):
            continue
        total, allowed = sum(known), wide * max(abs(its.loss), 1e-6)
        if abs(total / len(known) - its.loss) > allowed and abs(total - its.loss) > allowed:
            return Mismatch("losses", step, distance=abs(total / len(known) - its.loss), factor=total / its.loss)
    return None


def _tensors(kind: str, ranks: Sequence[Update], alone: Update, step: int, wide: float) -> Mismatch | None:
    wanted: Sketches = getattr(alone, kind)
    longest = max((one.length for one in wanted.values()), default=0.0)
    for rank, update in enumerate(ranks):
        own: Sketches = getattr(update, kind)
        names = list(dict.fromkeys([*wanted, *own]))
        wrong = [name for name in names if not close(own.get(name, NOTHING), wanted.get(name, NOTHING), wide, longest)]
        if wrong:
            clear = [name for name in wrong if name in wanted and name in own]
            name = clear[0] if clear else wrong[0]
            a, b = own.get(name, NOTHING), wanted.get(name, NOTHING)
            return Mismatch(kind, step, name, rank, part(a, b), _shared_factor(own, wanted, wrong), len(wrong), len(names))
    return None


def _shared_factor(own: Sketches, wanted: Sketches, names: Sequence[str]) -> float:
    """What all that differ are multiplied by; not a number where they differ in another way."""
    factors = [factor_of(own.get(name, NOTHING), wanted.get(name, NOTHING)) for name in names]
    known = [one for one in factors if not math.isnan(one)]
    if len(known) < max(1, len(factors) // 2) or max(known) - min(known) > 0.02 * abs(max(known)):
        return math.nan
    return known[0]


def _norms(ranks: Sequence[Update], alone: Update, step: int, wide: float) -> Mismatch | None:
    for rank, update in enumerate(ranks):
        for (_, own), (_, wanted) in zip(update.norms, alone.norms, strict=False):
            if abs(own - wanted) > wide * max(abs(wanted), 1e-12):
                return Mismatch("norms", step, rank=rank, distance=abs(own - wanted), factor=own / (wanted or math.nan))
    return None


def _rates(ranks: Sequence[Update], alone: Update, step: int) -> Mismatch | None:
    for rank, update in enumerate(ranks):
        for own, wanted in zip(update.rates, alone.rates, strict=False):
            if abs(own - wanted) > _SAME * max(abs(own), abs(wanted)):
                return Mismatch("rates", step, rank=rank, factor=own / wanted if wanted else math.inf)
    return None


def close(one: Sketch, other: Sketch, wide: float, longest: float = 0.0) -> bool:
    """Whether two tensors are the same but for rounding.

    Args:
        longest: length of the longest tensor beside it: one that is nearly nothing beside that is a difference of others.
    """
    return one.distance(other) <= wide * max(one.length, other.length) + 1e-2 * wide * longest + 1e-12


def part(one: Sketch, other: Sketch) -> float:
    """The difference, as a part of the second one's length."""
    return one.distance(other) / (other.length or one.length or 1.0)
