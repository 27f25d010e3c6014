"""All that a step with inputs of one shape needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.outputs import Post
from ..engine.shape import RecordedForward
from ..tracing.held import Place
from .schedule import Schedule


@dataclass
class Prepared:
    """A recorded forward, cut, with its schedule.

    ways: the ways that its microbatches go; more than one where values of the inputs decide.
    random, draws: whether the forward draws from torch's generators; from Python's or numpy's.
    mine: stages of this rank.
    post: for what the steps return.
    known: what `expected` has found.
    verified: whether a step with it was verified, or was found not to need that.
    """

    ways: list[RecordedForward]
    schedule: Schedule
    training: bool
    random: bool
    draws: bool
    mine: list[int]
    post: Post = field(default_factory=Post)
    known: dict[tuple[int, ...], dict[str, int]] = field(default_factory=dict)
    verified: bool = False

    @property
    def asks(self) -> bool:
        """Tells whether each microbatch's way must be found out, and the shapes of its inputs do not tell it."""
        several = len({way.facts for way in self.ways}) < len(self.ways)
        return several or any(way.cut.trace.asks for way in self.ways)

    def by_shape(self, shapes: Sequence[Any]) -> list[int]:
        """The way of each microbatch by what is known of its inputs."""
        numbers = {way.facts: number for number, way in enumerate(self.ways)}
        return [numbers[one] for one in shapes]

    @property
    def tallies(self) -> frozenset[tuple[str, str]]:
        """(module, attribute) of numbers and texts that code between the units changes."""
        return frozenset().union(*(way.cut.trace.tallies for way in self.ways))

    @property
    def kept(self) -> frozenset[Place]:
        """Tensors in attributes that every stage changes."""
        return frozenset().union(*(way.cut.trace.kept for way in self.ways))

    @property
    def counters(self) -> frozenset[tuple[str, str]]:
        """(module, attribute) of all that the forward notes."""
        return frozenset().union(*(way.cut.trace.counters for way in self.ways))

    @property
    def last(self) -> int:
        """Number of the last stage."""
        return len(self.ways[0].cut.starts) - 1

    def expected(self, taken: list[int]) -> dict[str, int]:
        """Parameter -> how often the backward adds to its gradient on this rank.

        Args:
            taken: the way of each microbatch.
        """
        key = tuple(sorted(taken))
        if key not in self.known:
            found = self.known[key] = {}
            for number in taken:
                cut = self.ways[number].cut
                for name, stages in cut.users().items():
                    times = sum(1 for stage in stages if stage in self.mine)
                    if times and name in cut.trace.reached:
                        found[name] = found.get(name, 0) + times
        return self.known[key]
