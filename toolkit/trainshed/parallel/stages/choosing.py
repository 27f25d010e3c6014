"""Chooses the record that fits a step, and the way of each of its microbatches.

Where nothing has changed since a record was found to fit, each rank knows that by itself. Where something has, every rank
follows the forward without the modules, and they agree on what they have found before any of them goes on: none may record
while another one trains.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from trainshed.base.errors import some

from ..engine.batch import Microbatch, facts
from ..engine.checking import first_difference, in_company, of_the_same
from ..engine.object_collectives import WAYS
from ..engine.shape import RecordedForward
from ..ground.errors import Different, PipelineError
from ..ground.grid import Grid
from ..tracing import host_rng as dice
from ..tracing.call_routing import UnitGates
from ..tracing.global_effects import Surroundings
from ..tracing.python_state import Key, Look, Switches, changes, spoken
from ..tracing.route import Scout
from ..tracing.subject import Backward, Subject
from .prepared import Prepared
from .records import UNKNOWN, Records

_NAMED = 3
_ONE_MODEL = "what Python decides by must be the same on all ranks of a pipeline: set it on all of them before the same step"


@dataclass
class _Now:
    """The step that begins.

    shapes: what is known of each microbatch without looking at the model.
    """

    function: Callable[..., Any]
    microbatches: list[Microbatch]
    base: Hashable
    shapes: tuple[Any, ...]
    look: Look


class Chooser:
    """Chooses for one model.

    Args:
        attach: tells the model that the user sees where its `backward` goes.
        modes: on what every record depends, besides the step function and its inputs.
        units: the modules that are never split; None while there is no plan.
        record: records a way. Collective.
        build: prepares ways for a number of microbatches.
    """

    def __init__(
        self,
        grid: Grid,
        root: torch.nn.Module,
        gates: UnitGates,
        attach: Callable[[Backward | None], None],
        *,
        modes: Callable[[], Hashable],
        units: Callable[[], frozenset[str] | None],
        record: Callable[[Subject, int], RecordedForward],
        build: Callable[[list[RecordedForward], int], Prepared],
    ) -> None:
        self._grid, self._root, self._gates, self._attach = grid, root, gates, attach
        self._modes, self._units, self._record, self._build = modes, units, record, build
        self._records = Records()
        self._said: set[Key] = set()
        self._switches: dict[Any, Switches] = {}
        self._now: _Now | None = None

    def clear(self) -> None:
        """Drops all records."""
        self._records.clear()
        self._switches.clear()

    def recall(self, function: Callable[..., Any], microbatches: list[Microbatch]) -> int:
        """Number of the record that is known to fit a step that begins; `UNKNOWN` if that is to be found out."""
        shapes = tuple(map(facts, microbatches))
        base = (function, len(microbatches), self._modes(), shapes)
        units = self._units()
        if units is None:
            return UNKNOWN
        self._now = _Now(function, microbatches, base, shapes, self._look(function, microbatches, units))
        return self._records.recall(base, self._now.look)

    def choose(
        self, function: Callable[..., Any], microbatches: list[Microbatch], seed: int, number: int
    ) -> tuple[Prepared, list[int]]:
        """Returns what the step needs, and the way of each microbatch. Collective where it was not known, or a way is new.

        Args:
            seed: of Python's and numpy's generators in this step.
            number: what `recall` has given on all ranks; `UNKNOWN` if not all of them knew it.

        Raises:
            PipelineError: microbatches differ in shape or type; the ranks of the pipeline go different ways.
            PlanError: there is no plan, or it does not fit what was recorded.
        """
        subjects = [
            Subject(self._root, function, self._attach, *microbatch, self._grid.device, (seed, position))
            for position, microbatch in enumerate(microbatches)
        ]
        known = number != UNKNOWN
        if not known:
            number = self._agreed([self._matching(subjects[0])])[0]
        if number == UNKNOWN:
            number = self._add(subjects)
        now, prepared = self._known_now(), self._records.use(number)
        if not prepared.asks and (known or not prepared.tallies):
            if not known:
                self._records.fits(number, now.base, now.look)
            return prepared, prepared.by_shape(now.shapes)
        ways = list(prepared.ways)
        taken = self._taken(subjects, ways, alone=known)
        if len(ways) > len(prepared.ways):
            prepared = self._build(ways, len(subjects))
            self._records.replace(number, prepared)
        if not known:
            self._records.fits(number, now.base, now.look)
        return prepared, taken

    # Records ---------------------------------------------------------------------------------------------------------

    def _matching(self, subject: Subject) -> int:
        """The record that the first microbatch follows, as far as this rank can see."""
        if self._now is None:
            return UNKNOWN
        for number in self._records.candidates(self._now.base, self._now.look):
            if self._followed([subject], self._records.use(number).ways, {}):
                return number
        return UNKNOWN

    def _add(self, subjects: list[Subject]) -> int:
        function, microbatches = subjects[0].function, [(subject.args, subject.kwargs) for subject in subjects]
        try:
            way = self._record(subjects[0], len(subjects))
            of_shape = {way.facts: way}
            for subject in subjects[1:]:
                if _facts(subject) not in of_shape:
                    of_shape[_facts(subject)] = self._record(subject, len(subjects))
        except Different as error:
            raise Different(f"{error.message}{self._difference()}", hint=error.hint) from error
        if way.cut.trace.reads and not way.cut.trace.has_backward and torch.is_grad_enabled():
            # It may be this microbatch alone that the step function leaves out.
            others = (self._record(subject, len(subjects)) for subject in subjects[1:])
            way = next((other for other in others if other.cut.trace.has_backward), way)
        of_shape[way.facts] = way
        prepared = self._build(list(of_shape.values()), len(subjects))
        self.recall(function, microbatches)  # the first record has made the plan, and with it the units
        now = self._known_now()
        number, found = self._records.add(now.base, now.look, prepared)
        self._say(found)
        return number

    def _say(self, found: list[Key]) -> None:
        fresh = [key for key in found if key not in self._said]
        self._said.update(fresh)
        if fresh and self._grid.place.pipeline == 0:
            named = some([spoken(key) for key in fresh], _NAMED)
            print(f"the forward goes another way with another value of {named}: it is recorded again", flush=True)

    def _look(self, function: Callable[..., Any], microbatches: list[Microbatch], units: frozenset[str]) -> Look:
        switches = self._switches.get(function)
        if switches is None or switches.units is not units:
            switches = self._switches[function] = Switches(self._root, function, units)
        return switches.look(*microbatches[0])

    def _known_now(self) -> _Now:
        if self._now is None:
            raise PipelineError("a step was prepared before it began")
        return self._now

    # Ways ------------------------------------------------------------------------------------------------------------

    def _taken(self, subjects: list[Subject], ways: list[RecordedForward], *, alone: bool) -> list[int]:
        """The way of each microbatch; a new one is recorded, and added to `ways`.

        Args:
            alone: every rank comes to the same, because values that all of them have decide.
        """
        forced: dict[int, int] = {}
        while True:
            mine = self._followed(subjects, ways, forced)
            mine += [UNKNOWN] * (len(subjects) - len(mine))
            taken = mine if alone else self._agreed(mine)
            if UNKNOWN not in taken:
                return taken
            at = taken.index(UNKNOWN)
            with subjects[0].untouched(buffers=False):
                self._follow(subjects[:at], ways, dict(enumerate(taken[:at])))
                ways.append(self._record(subjects[at], len(subjects)))
            forced = {**dict(enumerate(taken[:at])), at: len(ways) - 1}

    def _followed(self, subjects: list[Subject], ways: list[RecordedForward], forced: dict[int, int]) -> list[int]:
        with subjects[0].untouched(buffers=False):
            return self._follow(subjects, ways, forced)

    def _follow(self, subjects: list[Subject], ways: list[RecordedForward], forced: dict[int, int]) -> list[int]:
        """The ways of microbatches one after the other, up to one that goes none of them. What modules count goes on.

        Args:
            forced: microbatch -> the way that it goes in any case.
        """
        taken: list[int] = []
        for position, subject in enumerate(subjects):
            looks = _facts(subject)
            fitting = [number for number, way in enumerate(ways) if way.facts == looks]
            for number in [forced[position]] if position in forced else fitting:
                before = Surroundings(self._root, self._grid.device, subject.function, buffers=False)
                if subject.seed is not None:
                    dice.start(*subject.seed)
                scout = Scout(ways[number].cut.trace, self._gates, self._grid.device)
                with subject.attached(scout):
                    follows = scout.follows(subject.function, *subject.inputs())
                if follows or position in forced:
                    taken.append(number)
                    break
                before.restore()
            else:
                return taken
        return taken

    def _agreed(self, mine: list[int]) -> list[int]:
        """What all ranks with this batch say, `UNKNOWN` where one of them does not know; up to the first such. Collective.

        Raises:
            PipelineError: they know different things.
        """
        ranks = self._grid.company_ranks
        if len(ranks) == 1:
            return mine
        found = in_company(self._grid, WAYS, mine)
        agreed = [min(each) for each in zip(*found, strict=True)]
        agreed = agreed[: agreed.index(UNKNOWN)] if UNKNOWN in agreed else agreed
        for rank, one in zip(ranks, found, strict=True):
            if one[: len(agreed)] != agreed:
                raise Different(
                    f"rank {rank} goes another way through the model than rank {ranks[0]} {of_the_same(self._grid, rank)}"
                    f"{self._difference()}",
                    hint=_ONE_MODEL,
                )
        return agreed + [UNKNOWN] * (len(mine) - len(agreed))

    def _difference(self) -> str:
        """Which value is another one on another rank, where one is; for all ranks to ask at once. Collective."""
        values: dict[str, str] = {}
        if self._now is not None:
            known = self._records.latest(self._now.base)
            seen = {**self._now.look.outside, **self._now.look.inside}
            changed = changes(known, self._now.look) if known is not None else list(seen)
            values = {spoken(key): repr(seen.get(key)) for key in changed}
        return first_difference(self._grid, values)


def _facts(subject: Subject) -> Any:
    return facts((subject.args, subject.kwargs))
