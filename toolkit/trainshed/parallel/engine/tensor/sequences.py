"""Which results stay in parts along the tokens, as Megatron's sequence parallelism has them between its layers.

The last Linear of a pair and an embedding sum over the ranks what each has found. Where residual additions, norms and
dropout follow, a rank can go on with the sums of its tokens alone, until the next divided Linear gathers all tokens: both
together send what a sum sends, and what is kept in between for the backward is a part. A Linear in no pair gives such parts
as well: its ranks exchange features for tokens, where they would gather all features.

Where that is so is seen in a trial, as pairs are (`pairs`): there results are whole beside their parts, and what has to be
gathered besides, or what gradients are, is counted in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import torch

from ...ground.exchanges import length_of
from .kinds import Kind
from .pairs import Attempt, PairChoice
from .sharded_tensor import Part, TensorRegion, Trial, size_of, whole_of

# What may be sent besides, of what the results send: small tensors, and what a deep model gathers at its ends.
_MORE = 1 / 64
# Trials, at most.
_TRIALS = 4
# How often the bytes of a result are sent, about: summed forward, and the gradient of what reads it backward.
_SENT = 4


@dataclass
class Flow:
    """The observations of one rank.

    given: module -> bytes of its results along the tokens.
    alone: those of these modules that are in no pair.
    taken: modules that took such ones.
    sent: bytes that are sent besides: modules that they come from, and how many.
    needed: modules whose results have to be whole.
    broken: where a result of a pair's first Linear was gathered, modules whose results may have been why.
    """

    given: dict[str, int] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    sent: list[tuple[frozenset[str], float]] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)


class Along(Attempt):
    """The trial.

    Args:
        kinds, kept: as for `Pairs`, with those that sum.
        told: the pairs, and modules whose results have to be whole.
    """

    def __init__(
        self,
        region: TensorRegion,
        kinds: Mapping[str, Kind],
        kept: Container[str],
        told: tuple[PairChoice, Collection[str]],
        *,
        counts: bool = False,
    ) -> None:
        super().__init__(region, counts=counts)
        self.seen, self._kept = Flow(), kept
        self._choice, avoided = told
        self._opens = self._choice.opening | self._choice.joint
        paired = self._opens | self._choice.closing
        self._alone = {name for name, kind in kinds.items() if kind.opening is not None} - paired
        sums = {name for name, kind in kinds.items() if kind.term is not None}
        self._gives = {n for n in self._choice.closing | self._alone | sums if n not in kept and n not in avoided}
        self._last: Callable[[], Part | None] = _nothing

    def _ended(self, trial: Trial) -> None:
        self.seen.sent += trial.sent
        self.seen.needed |= trial.needed | trial.kept
        if not self._opens.isdisjoint(trial.bad):
            self.seen.broken = self._gives & trial.bad.keys()
            self.seen.needed |= self._gives

    def call(self, name: str, kind: Kind, native: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As of `Pairs`."""
        given = (*args, *kwargs.values())
        if name in self._kept or len(given) != 1 or not isinstance(given[0], torch.Tensor):
            return native(*map(whole_of, args), **{key: whole_of(one) for key, one in kwargs.items()})
        found, ranks = self._found(name, kind, native, given[0]), self.region.ranks
        if name in self._gives and self.region.functions:  # one runs again in its backward, and knows no parts
            self.seen.needed.add(name)
        elif name in self._gives and in_tokens(found, ranks):
            size = size_of(found)
            self.seen.given[name] = self.seen.given.get(name, 0) + size
            back = size if found.requires_grad else 0
            if name in self._alone:  # in place of a gather
                self.seen.alone.add(name)
                self.seen.sent.append((frozenset({name}), (size + back) / ranks - size))
            else:  # in place of a sum
                self.seen.sent.append((frozenset({name}), back - size))
            own = self.region.cut(found.detach(), -2).clone()
            return Part.made_by(name, self.region, own, found.shape[-2], -2, found)
        if name in self._opens:
            own = self.region.cut(found.detach(), -1).clone()
            return Part.made_by(name, self.region, own, kind.features, twin=found)
        return found

    def _found(self, name: str, kind: Kind, native: Callable[..., Any], x: torch.Tensor) -> Any:
        """The whole of a module's result."""
        before, self._last = self._last(), _nothing
        if not isinstance(x, Part) or x.whole is not None or x.twin is None or self.region.trial is None:
            return native(x)
        if name in self._choice.closing and x.along_features:
            with self.region.trial.keeping(1 / self.region.ranks):
                return native(x.twin)
        if name in self._choice.closing or kind.opening is None or x.along_features:
            return native(x.become_whole(name))
        self._last = ref(x)
        self.seen.taken.add(name)
        free = before is x or x.twin.requires_grad  # its gradient would be summed if it were whole
        self.seen.sent.append((x.sources, 0 if free else size_of(x)))
        return native(x.twin)


def _nothing() -> None:
    return None


def in_tokens(result: torch.Tensor, ranks: int) -> bool:
    """Returns whether each rank has a part of a module's result along its last axis but one."""
    return result.ndim > 1 and length_of(result.shape[-2], ranks, ranks - 1) > 0 and result.numel() > 0


def look_along(
    choice: PairChoice, trial: Callable[[tuple[PairChoice, Collection[str]]], Sequence[Flow] | None]
) -> PairChoice:
    """The same pairs, with the results that stay in parts along the tokens.

    Args:
        trial: what the ranks see with these pairs, where results of these modules are whole; None if it did not run.
    """
    avoided: set[str] = set()
    found = choice
    for _ in range(_TRIALS if choice.closing else 0):
        seen = trial((choice, avoided))
        if seen is None:
            break
        stay, spoilers = zip(*map(_judged, seen), strict=True)
        along, taking = frozenset.intersection(*stay), frozenset[str]().union(*(one.taken for one in seen))
        found = replace(choice, along=along, taking=taking if along else frozenset())
        if not any(spoilers):
            break
        avoided.update(*spoilers)
    return found


def _judged(flow: Flow) -> tuple[frozenset[str], frozenset[str]]:
    """Modules whose results may stay, those that meet together or none of them; and those without whose results others
    might."""
    groups: list[tuple[frozenset[str], float]] = []
    for names, sent in flow.sent:
        near = [one for one in groups if one[0] & names]
        groups = [one for one in groups if one not in near]
        groups.append((names.union(*(one[0] for one in near)), sent + sum(one[1] for one in near)))
    stay, spoilers = set[str](), {*flow.broken}
    for names, sent in groups:
        results = names & flow.given.keys()
        if names.isdisjoint(flow.needed) and sent <= _MORE * _SENT * sum(flow.given[name] for name in results):
            stay |= results
        elif not results <= flow.alone:
            spoilers |= results & flow.alone
    return frozenset(stay), frozenset(spoilers)
