"""Foresees what a tensor group would divide, told by one process that divides nothing: for plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ...ground.shards import has_gradient_hook
from ...ground.torch_private import parameters_in
from ...ground.tree import map_leaves, tensors
from ...plan.division import DivisibleModule, Foreseen, PieceCall, divided
from ...plan.profile import PASSES, counted_seconds
from ...tracing.subject import Subject
from .division import candidates
from .experts import ExpertCall, Experts
from .kinds import Kind
from .pair_foresight import kept_among, pairs_among
from .pairs import Attempt, PairChoice
from .parameter_usage import Uses
from .sharded_tensor import whole_of

_UNLIKE_EXPERTS = "it is not called as experts are"


def foresee(subject: Subject, paired: Sequence[int], wanted: Callable[[nn.Module], bool], kept: tuple[str, ...]) -> Foreseen:
    """The modules that a tensor group can divide, with what their calls take. The forward runs a few times.

    That the parts of experts add up to the whole is left to be tried by the job. So is, where operations are counted, that
    parts between modules are parts of the whole: there functions are known by their rules alone.

    Args:
        paired: numbers of ranks for which results may stay in parts.
        wanted: tells whether the script wants a module divided.
        kept: names of modules that stay whole with all that is in them.
    """
    root = subject.root
    found = [(name, kind, reason) for name, kind, reason in candidates(root, wanted, kept)]
    last = _Last()
    seats = [_Seat(name, kind, last) for name, kind, reason in found if not reason]
    watched = [p for seat in seats for p in parameters_in(seat.kind.module).values() if p is not None]
    uses = Uses(watched)
    counts = subject.counts or subject.device.type == "meta"
    names = {id(parameter): name for name, parameter in root.named_parameters()}
    by_kind = {id(seat.kind): seat for seat in seats}
    try:
        for seat in seats:
            seat.kind.module.forward = seat  # type: ignore[method-assign]
            seat.uses = uses
        with uses:
            run_forward(subject)
        for seat in seats:
            seat.uses, seat.counts = None, counts
        for _ in range(1 if counts else PASSES):
            last.given = None
            for seat in seats:
                seat.runs.append([])
            run_forward(subject)
        pieces = [_piece(name, kind, reason, by_kind.get(id(kind)), uses, names) for name, kind, reason in found]
        pairs = {ranks: _paired(subject, ranks, found, pieces, seats, counts) for ranks in paired}
    finally:
        last.given = None
        for seat in seats:
            del seat.kind.module.forward
    every = tuple(
        replace(
            piece,
            opens=tuple(ranks for ranks, (choice, _) in pairs.items() if piece.module in choice.opening | choice.joint),
            closes=tuple(ranks for ranks, (choice, _) in pairs.items() if piece.module in choice.closing),
            along=tuple(ranks for ranks, (choice, _) in pairs.items() if piece.module in choice.along),
            takes=tuple(ranks for ranks, (choice, _) in pairs.items() if piece.module in choice.taking),
        )
        for piece in pieces
    )
    return Foreseen(every, {ranks: share for ranks, (_, share) in pairs.items()})


class _Last:
    """What the piece before was given."""

    given: torch.Tensor | None = None


class _Seat:
    """What stands for the forward of a module that could be divided: runs it, and notes its calls."""

    def __init__(self, name: str, kind: Kind, last: _Last) -> None:
        self.name, self.kind, self.native, self.last = name, kind, kind.module.forward, last
        self.uses: Uses | None = None
        self.pairs: Attempt | None = None
        self.counts, self.unlike = False, False
        self.runs: list[list[PieceCall]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.uses is not None:
            self.unlike |= isinstance(self.kind, Experts) and ExpertCall.of(args, kwargs) is None
            with self.uses.of(self.kind.module, self.kind.reads):
                return self.native(*args, **kwargs)
        if self.pairs is not None:
            return self.pairs.call(self.name, self.kind, self.native, args, kwargs)
        given = [one for one in tensors((args, kwargs)) if one.is_floating_point()]
        again = bool(given) and given[0] is self.last.given
        counter = FlopCounterMode(display=False) if self.counts else None
        started = time.perf_counter()
        with counter or nullcontext():
            result = self.native(*args, **kwargs)
        if given and given[0].is_cuda:
            torch.cuda.synchronize(given[0].device)
        seconds = time.perf_counter() - started
        self.last.given = given[0] if given else None
        sizes = [sum(one.numel() * one.element_size() for one in several) for several in (given, tensors(result))]
        if counter is not None:
            seconds = counted_seconds(counter.get_total_flops(), sum(sizes))
        # The words that an embedding reads get no gradient.
        enters = sizes[0] if any(one.requires_grad for one in given) else 0
        self.runs[-1].append(PieceCall(seconds, enters, sizes[1], again))
        return result

    def calls(self) -> tuple[PieceCall, ...]:
        """Those of the quickest run."""
        return tuple(min(self.runs, key=lambda run: sum(call.forward for call in run), default=()))


class _Nowhere:
    def backward(self, losses: object) -> None:
        """No backward runs."""


def run_forward(subject: Subject) -> None:
    """Runs it once, without a backward."""
    with subject.untouched(), subject.attached(_Nowhere()):
        args, kwargs = subject.inputs()
        map_leaves(whole_of, subject.function(*args, **kwargs))


def _paired(
    subject: Subject,
    ranks: int,
    found: Sequence[tuple[str, Kind, str]],
    pieces: Sequence[DivisibleModule],
    seats: Sequence[_Seat],
    counts: bool,
) -> tuple[PairChoice, float]:
    """Which modules would make pairs among so many ranks, and what part of what is kept for the backward one keeps."""
    kinds = {name: kind for name, kind, reason in found if not reason}
    divided_ones = {one.module for one in divided(pieces, ranks).pieces}

    def run(pairs: Attempt) -> None:
        for seat in seats:
            seat.pairs = pairs
        try:
            run_forward(subject)
        finally:
            for seat in seats:
                seat.pairs = None

    whole = kinds.keys() - divided_ones
    choice = pairs_among(ranks, kinds, whole, run, counts=counts)
    return choice, kept_among(ranks, kinds, whole, run, choice, subject.root)


def _piece(name: str, kind: Kind, reason: str, seat: _Seat | None, uses: Uses, names: dict[int, str]) -> DivisibleModule:
    module = kind.module
    axes = {names[id(parameters_in(module)[own])]: axis for own, axis in kind.axes.items()}
    for own in kind.axes if not reason else ():
        parameter: Any = parameters_in(module)[own]
        if has_gradient_hook(parameter):
            reason = f"{own} has a gradient hook"
        elif id(parameter) in uses.outside:
            reason = f"{own} is also read by {uses.outside[id(parameter)]}() outside of its own forward"
        elif id(parameter) not in uses.inside:
            reason = "its own forward does not run"
    if not reason and seat is not None and seat.unlike:
        reason = _UNLIKE_EXPERTS
    calls = seat.calls() if seat is not None else ()
    sums = isinstance(kind, Experts) or isinstance(module, nn.Embedding)
    return DivisibleModule(name, type(module).__name__, kind.features, axes, calls, kind.noun, sums, reason)
