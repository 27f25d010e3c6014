"""The ways of a job that leaves its degrees to be chosen: also how many microbatches a step has, and their order.

Such a job is measured with microbatches that are as small as may be. A way with fewer of them has larger ones, whose costs
are those of the small ones times their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainshed.contract.wire.pipeline import PipelineError, PipelineSettings, read_settings

from .candidates import RankLayout, Terms, ways_for
from .degrees import Choice
from .plan_request import Wish

# Orders of work, and the stages that each rank then has.
_ORDERS = (("1f1b", 1), ("interleaved1f1b", 2), ("interleavedzerobubble", 1), ("zbvzerobubble", 2))
# Microbatches that are worth to be looked at: so many for each rank, and so many numbers of them.
MOST_EACH, _NUMBERS = 4, 3


def smallest_microbatches(ranks: int, settings: PipelineSettings) -> int:
    """In how many parts the batch of all replicas is to be split to be measured, if it has so many rows."""
    each = MOST_EACH if "microbatches" in settings.open else settings.microbatches
    return ranks * each


def open_ways(ranks: int, wish: Wish, terms: Terms, settings: PipelineSettings) -> list[RankLayout]:
    """All ways that keep to the settings that were given, most ranks of a pipeline first.

    Args:
        wish: `microbatches` are those that were measured.
    """
    orders: Sequence[tuple[str, int]] = _ORDERS
    if "pipeline" not in settings.open:
        orders = [(settings.schedule, settings.virtual_stages)]
    found: dict[tuple[Any, ...], RankLayout] = {}
    for total in _totals(ranks, wish.microbatches, settings):
        for schedule, virtual in orders:
            asked = replace(wish, microbatches=total, schedule=schedule, virtual=virtual)
            for way in ways_for(ranks, asked, terms):
                if not _keeps(way, settings):
                    continue
                if total > wish.microbatches and not way.problem:
                    way = replace(way, problem=f"the batch has {wish.microbatches} rows, and not {total}")
                if way.stages == 1:  # there is no order of stages
                    way = replace(way, wish=replace(way.wish, schedule=orders[0][0]))
                rows = wish.microbatches / (way.microbatches * way.replicas)
                order = way.stages > 1 and (schedule, virtual)
                key = way.stages, way.tensor, way.microbatches, order
                found.setdefault(key, replace(way, wish=replace(way.wish, rows=rows)))
    return sorted(found.values(), key=lambda way: -way.stages)


def goes_with(choice: Choice, given: Mapping[str, Any]) -> bool:
    """Returns whether a job's other settings allow what a choice shards."""
    try:
        read_settings({**given, **choice.settings()})
    except PipelineError:
        return False
    return True


def keeps_sharding(choice: Choice, settings: PipelineSettings) -> bool:
    """Returns whether what is sharded over replicas is what was given."""
    if "sharded_data_parallel_degree" not in settings.open and choice.degree != settings.sharded_data_parallel_degree:
        return False
    if "shard_optimizer_state" in settings.open or choice.degree > 1:
        return True
    return choice.sharded == (settings.shard_optimizer_state and choice.way.replicas > 1)


def _totals(ranks: int, measured: int, settings: PipelineSettings) -> list[int]:
    """Numbers of microbatches of all replicas together."""
    if "microbatches" in settings.open:
        return [total for total in range(measured, 0, -1) if measured % total == 0][:_NUMBERS]
    return [settings.microbatches * replicas for replicas in range(ranks, 0, -1) if ranks % replicas == 0]


def _keeps(way: RankLayout, settings: PipelineSettings) -> bool:
    own = {
        "pipeline_parallel_degree": way.stages,
        "tensor_parallel_degree": way.tensor,
        "microbatches": way.microbatches,
    }
    return all(name in settings.open or getattr(settings, name) == value for name, value in own.items())
