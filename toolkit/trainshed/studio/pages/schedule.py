"""The schedule of a pipeline: which rank works on which microbatch when, and where it waits."""

from __future__ import annotations

from trainshed.base.files import read_object
from trainshed.contract.wire.pipeline import PipelineError, read_settings
from trainshed.parallel.plan.simulate import ZERO_BUBBLE, order, placed

from .bars import BarRow, Span, draw
from .facts import LARGEST, entries, mapping, number
from .markup import legend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .facts import RunFacts

_COLOURS = {"forward": "k0", "backward": "k1", "weight": "k2", "whole": "k3"}
_CALLED = {"whole": "backward in one"}
_MOST = 4000  # pieces of work that a picture may have
MOST_RANKS = 32


def draw_schedule(run: RunFacts) -> str:
    """The picture of one step; "" for a job without a pipeline."""
    asked = mapping(mapping(mapping(run.record.get("job")).get("distribution")).get("pipeline"))
    if not asked:
        return ""
    try:
        settings = read_settings(asked)
        ranks, kind, microbatches = settings.pipeline_parallel_degree, settings.schedule, settings.microbatches
        virtual = settings.virtual_stages
        plan: dict[str, Any] = read_object(settings.partition_file, LARGEST) if settings.partition_file else {}
        virtual = _fewer(mapping(plan.get("pipeline")), virtual)
        stages = ranks * virtual
        if not 1 < ranks <= MOST_RANKS or stages * microbatches * 3 > _MOST or microbatches < 1:
            return ""
        planned = _planned(plan, stages)
        forward, backward = planned or ([1.0] * stages, [2.0] * stages)
        weight: list[float] = []
        if kind in ZERO_BUBBLE:  # its backward comes in two parts
            backward = weight = [seconds / 2 for seconds in backward]
        orders = order(kind, ranks, virtual, microbatches)
        work = placed(orders, forward, backward, [0.0] * (stages - 1), weight)
    except (PipelineError, KeyError, ValueError, TypeError, IndexError, ZeroDivisionError):
        return ""
    rows = []
    for rank, pieces in enumerate(work):
        spans = [
            Span(
                start,
                end,
                _COLOURS[piece.kind],
                str(piece.microbatch),
                f"{_CALLED.get(piece.kind, piece.kind)} of microbatch {piece.microbatch}, stage {piece.stage}",
            )
            for piece, start, end in pieces
        ]
        rows.append(BarRow(f"pipeline rank {rank}", tuple(spans)))
    length = max(end for pieces in work for _, _, end in pieces)
    busy = sum(end - start for pieces in work for _, start, end in pieces)
    bubble = 1 - busy / (length * ranks) if length else 0.0
    there = {piece.kind for pieces in work for piece, _, _ in pieces}
    kinds = [one for one in _COLOURS if one in there]
    said = "times as in the plan" if planned else "with equal stages, a backward twice as long as a forward"
    note = f'<p class="note">{kind}, {microbatches} microbatches, {said}: ranks wait for {bubble:.0%} of a step</p>'
    unit = " ms" if planned else ""
    picture = draw(rows, seconds=False, row=26, unit=unit)
    return note + legend((_COLOURS[one], _CALLED.get(one, one), "") for one in kinds) + picture


def _fewer(made: dict[str, Any], virtual: int) -> int:
    """Stages on each rank: the plan has fewer than the job asks for where the model has not enough parts."""
    found = made.get("virtual")
    return found if made.get("asked") == virtual and type(found) is int and 0 < found < virtual else virtual


def _planned(plan: dict[str, Any], stages: int) -> tuple[list[float], list[float]] | None:
    """Milliseconds of each stage by the plan file, None where there is none that fits."""
    forward, backward = [0.0] * stages, [0.0] * stages
    for unit in entries(plan.get("units")):
        stage = unit.get("stage")
        if type(stage) is not int or not 0 <= stage < stages:
            return None
        forward[stage] += number(unit.get("forward_ms"))
        backward[stage] += number(unit.get("backward_ms"))
    if min(forward) <= 0 or min(backward) <= 0:
        return None
    return forward, backward
