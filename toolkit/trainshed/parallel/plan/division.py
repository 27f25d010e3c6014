"""Foresees what a tensor group would divide of a model, and what that changes in the costs of its units.

A piece is a module whose parameters can be divided. Each rank of a group computes its share of it, and the ranks exchange
what makes the result whole, and in the backward the gradients of its input. All else of a unit is computed by every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .costs import Costs, Link, Traffic


@dataclass(frozen=True)
class PieceCall:
    """One call of a piece, for one microbatch and by one rank that has all of it.

    forward: seconds.
    given, found: bytes of its input and of its result.
    again: whether it was given the tensor that the piece before it was given: both share one sum of its gradient.
    """

    forward: float
    given: int
    found: int
    again: bool = False


@dataclass(frozen=True)
class DivisibleModule:
    """A module whose parameters can be divided.

    kind: the name of its class.
    features: parts that there are; `noun` says of what.
    axes: parameter -> the axis along which it would be divided.
    sums: whether the ranks sum what they have found, as embeddings and experts do; else they gather it.
    reason: why it stays whole all the same, or "".
    opens, closes: numbers of ranks among which its result stays in parts, up to another one or to a loss (whose few numbers
        are left out), and among which it takes parts (`tensor/pairs`).
    along, takes: numbers of ranks among which its result is in parts along the tokens, and among which it takes such parts
        (`tensor/sequences`).
    """

    module: str
    kind: str
    features: int
    axes: Mapping[str, int]
    calls: tuple[PieceCall, ...] = ()
    noun: str = "features"
    sums: bool = False
    reason: str = ""
    opens: Collection[int] = ()
    closes: Collection[int] = ()
    along: Collection[int] = ()
    takes: Collection[int] = ()


@dataclass(frozen=True)
class Foreseen:
    """The part of a model that tensor groups would divide.

    kept: number of ranks -> what one keeps for the backward, as a part of what one keeps that runs all of it, where results
        may stay in parts.
    """

    pieces: tuple[DivisibleModule, ...] = ()
    kept: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Divided:
    """The part that a group of so many ranks divides.

    pieces: those that are divided; pairs: whether some of them take others' results in parts.
    share: parameter -> the largest part of it that a rank has, 0 to 1.
    whole: module -> why it stays whole, of those that might be divided.
    kept: as of `Foreseen`.
    """

    ranks: int
    pieces: tuple[DivisibleModule, ...] = ()
    share: Mapping[str, float] = field(default_factory=dict)
    whole: Mapping[str, str] = field(default_factory=dict)
    pairs: bool = False
    kept: float = 1.0

    def table(self) -> dict[str, str]:
        """Module -> what a rank has of it, in words, for the plan file."""
        parts = {one.module: f"{_most(one.features, self.ranks)} of {one.features} {one.noun}" for one in self.pieces}
        return {**parts, **{name: f"whole: {reason}" for name, reason in self.whole.items()}}


def sent(piece: DivisibleModule, call: PieceCall, found: Divided, link: Link) -> tuple[Traffic, Traffic]:
    """Returns what the ranks of a group exchange for one call, forward and backward."""
    ranks, given = found.ranks, 0 if call.again else call.given
    along = found.pairs and ranks in piece.along
    if along and (piece.sums or ranks in piece.closes):  # a sum in parts, and all of its gradient; it reads parts or words
        return link.gathered(call.found, ranks), link.gathered(call.found, ranks)
    if found.pairs and ranks in piece.closes:  # each has a term of the result; and of the input's gradient what it had of it
        return link.summed(call.found, ranks), Traffic()
    takes = found.pairs and ranks in piece.takes
    before, backward = (link.gathered(given, ranks),) * 2 if takes else (Traffic(), link.summed(given, ranks))
    if found.pairs and ranks in piece.opens:
        return before, backward
    if along:  # features for tokens, and back
        part = link.gathered(call.found / ranks, ranks)
        return before + part, backward + part
    return before + (link.summed(call.found, ranks) if piece.sums else link.gathered(call.found, ranks)), backward


def divided(pieces: Sequence[DivisibleModule], ranks: int, *, pairs: bool = False, kept: float = 1.0) -> Divided:
    """Returns what a tensor group divides: a parameter that several modules share in all, along one axis, or in none.

    Args:
        pairs: whether results may stay in parts; `kept`: see `Divided`.
    """
    whole = {one.module: one.reason for one in pieces if one.reason}
    for one in pieces:
        if not one.reason and -(-one.features // ranks) * (ranks - 1) >= one.features:
            whole[one.module] = f"{one.features} {one.noun} do not make {ranks} parts"
    chosen = [one for one in pieces if one.module not in whole]
    while True:
        axes: dict[str, set[int]] = {}
        for one in chosen:
            for name, axis in one.axes.items():
                axes.setdefault(name, set()).add(axis)
        undivided = {name for one in pieces if one.module in whole for name in one.axes}
        undivided |= {name for name, several in axes.items() if len(several) > 1}
        apart = [one for one in chosen if undivided & one.axes.keys()]
        if not apart:
            break
        whole.update({one.module: "shares a parameter with a module that stays whole" for one in apart})
        chosen = [one for one in chosen if one not in apart]
    share = {name: _most(one.features, ranks) / one.features for one in chosen for name in one.axes}
    return Divided(ranks, tuple(chosen), share, whole, pairs, kept)


def divided_costs(costs: Costs, found: Divided, link: Link) -> Costs:
    """The costs of units whose pieces are divided: of a rank of the group.

    Args:
        link: between the ranks of a tensor group.
    """
    calls: dict[str, int] = {}
    for unit in costs.units:
        calls[unit.unit] = calls.get(unit.unit, 0) + 1
    units = []
    for unit in costs.units:
        inside = [one for one in found.pieces if _within(one.module, unit.unit)]
        saved, talk, back = 0.0, Traffic(), Traffic()
        for piece in inside:
            number = len(piece.calls)
            own = piece.calls[number * unit.call // calls[unit.unit] : number * (unit.call + 1) // calls[unit.unit]]
            for call in own:
                saved += call.forward * (1 - _most(piece.features, found.ranks) / piece.features)
                there, here = sent(piece, call, found, link)
                talk, back = talk + there, back + here
        part = min(1.0, saved / unit.forward) if unit.forward else 0.0
        back = back if unit.backward else Traffic()
        forward, backward = unit.forward * (1 - part) + talk.seconds, unit.backward * (1 - part) + back.seconds
        kept = round(unit.saved * found.kept)
        sent_bytes, least = talk.bytes + back.bytes, min(unit.least, kept)
        units.append(replace(unit, forward=forward, backward=backward, sent=sent_bytes, saved=kept, least=least))

    def of_rank(table: Mapping[str, int]) -> dict[str, int]:
        return {name: round(size * found.share.get(name, 1.0)) for name, size in table.items()}

    sizes, values, gradients = map(of_rank, (costs.sizes, costs.values, costs.gradients))
    return replace(costs, units=tuple(units), sizes=sizes, values=values, gradients=gradients)


def slowed_pieces(pieces: Sequence[DivisibleModule], factor: float) -> tuple[DivisibleModule, ...]:
    """The same pieces on a device that takes `factor` times as long."""
    return tuple(
        replace(one, calls=tuple(replace(call, forward=call.forward * factor) for call in one.calls)) for one in pieces
    )


def pieces_of_rows(pieces: Sequence[DivisibleModule], factor: float) -> tuple[DivisibleModule, ...]:
    """The same pieces for a microbatch with `factor` times the rows."""

    def grown(call: PieceCall) -> PieceCall:
        return replace(
            call, forward=call.forward * factor, given=round(call.given * factor), found=round(call.found * factor)
        )

    return tuple(replace(one, calls=tuple(map(grown, one.calls))) for one in pieces)


def _most(features: int, ranks: int) -> int:
    """The most that a rank has: as `torch.chunk` cuts."""
    return -(-features // ranks)


def _within(module: str, unit: str) -> bool:
    return not unit or module == unit or module.startswith(f"{unit}.")
