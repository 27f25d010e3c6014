"""What of a verified step is to be compared when its gradients are right: what the script does to them, and the optimizer.

Ranks can compare what a script has done to gradients that are divided without sending them: a gradient times a number has a
sketch times that number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ...ground.shards import local
from ..holding import Holding
from .comparing import factor_of
from .tensor_digest import Sketch, sketch

_SAME = 1e-3  # numbers that gradients were multiplied by are the same up to this part
_ALIKE = 1e-4  # and norms that a clipping has made


class AfterGradients:
    """The step that is verified, until an optimizer has taken it.

    due: the step's number; 0 where nothing is to be compared.
    before: name -> this rank's part of the gradient, as the step left it.
    taken: whether an optimizer has taken the step.
    norms: how many norms were compared.
    said: lines that were printed; each is printed once.
    """

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        self.due = 0
        self.before: dict[str, Sketch] = {}
        self.taken = False
        self.norms = 0
        self.said: set[str] = set()

    def ended(self, step: int, verified: bool) -> None:
        """At the end of a training step, also of one that adds to the gradients of the verified one."""
        if self.taken:
            self.due, self.taken = 0, False
        if verified:
            self.due, self.norms = step, 0
        gradients = self.holding.parts_of_gradients() if self.due else ()
        self.before = {name: sketch(local(one)) for name, one in gradients}

    def say(self, line: str) -> None:
        """Prints a line on the first rank."""
        if self.holding.grid.rank == 0 and line not in self.said:
            print(line, flush=True)
        self.said.add(line)


@dataclass(frozen=True)
class Scaled:
    """What was done to the gradients of one rank after the step.

    factors: name -> what its part was multiplied by; not a number where it was something else.
    norm: of all of its parts, now.
    narrow: names of which the part has fewer than two rows, which may have a factor of their own.
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    norm: float = 0.0
    narrow: frozenset[str] = frozenset()

    @property
    def common(self) -> float:
        """What all of them were multiplied by; not a number if there is no such number."""
        found = list(self.factors.values())
        return found[0] if found and not any(_apart(found[0], one) for one in found) else math.nan


def scaled(before: Mapping[str, Sketch], now: Mapping[str, torch.Tensor]) -> Scaled:
    """What was done to the gradients of this rank."""
    parts = {name: local(one) for name, one in now.items()}
    after = {name: sketch(one) for name, one in parts.items()}
    factors = {name: factor_of(one, before[name]) for name, one in after.items() if name in before and before[name].length}
    narrow = frozenset(name for name in factors if not parts[name].dim() or parts[name].shape[0] < 2)
    return Scaled(factors, math.hypot(*(one.length for one in after.values())), narrow)


def by_rank(found: Sequence[Scaled]) -> tuple[str, bool]:
    """Why what was done to gradients is not what one process does; empty if it may be. And whether that is certain.

    Parts of one gradient that were multiplied by several numbers were multiplied by numbers of parts. Where ranks have other
    parameters, they may want that, unless norms are the same afterwards.
    """
    shared: dict[str, list[tuple[int, float]]] = {}
    for rank, one in enumerate(found):
        for name, factor in one.factors.items():
            if math.isfinite(factor) and abs(factor) > 1e-12 and name not in one.narrow:
                shared.setdefault(name, []).append((rank, factor))
    several = {name: each for name, each in shared.items() if len(each) > 1}
    apart = {name: [one for one in each if _apart(one[1], each[0][1])] for name, each in several.items()}
    if several and all(apart.values()):
        name = next(iter(several))
        return _told(several[name][0], apart[name][0]), True
    whole = [(rank, one.common) for rank, one in enumerate(found) if math.isfinite(one.common)]
    for rank, factor in whole:
        for other, another in whole[:rank]:
            if _apart(factor, another) and not found[rank].factors.keys() & found[other].factors.keys():
                alike = abs(found[rank].norm - found[other].norm) <= _ALIKE * found[rank].norm
                clipped = alike and max(factor, another) < 1 - _SAME
                return _told((other, another), (rank, factor)), clipped
    return "", False


def _told(one: tuple[int, float], other: tuple[int, float]) -> str:
    return (
        f"after the step function the gradients on rank {other[0]} were multiplied by {other[1]:.4g}, those on rank "
        f"{one[0]} by {one[1]:.4g}"
    )


def _apart(one: float, other: float) -> bool:
    return not abs(one - other) <= _SAME * max(abs(one), abs(other))
