"""Who holds what: each rank's place, as a table for people."""

from __future__ import annotations

from ..ground.grid import layout
from ..ground.schedule_work import seat_of
from .plan_file import Plan

# Ranks that are shown; of more, those of the first pipeline's tensor groups and replicas tell how it goes on.
_SHOWN = 16


def holder_lines(plan: Plan, ranks_per_host: int = 0, placement: str = "cluster") -> list[str]:
    """A line a rank: its stages, its part of what tensor and context groups divide, its replica. Empty for one rank.

    Args:
        ranks_per_host: 0 where nobody has told.
    """
    degrees = plan.degrees
    stages, tensor, context, replicas = (degrees.get(name, 1) for name in ("stages", "tensor", "context", "replicas"))
    world = stages * tensor * context * replicas
    if world == 1:
        return []
    host = "host  " if ranks_per_host else ""
    sequence = "sequence part  " if context > 1 else ""
    lines = [f"rank  {host}stages  tensor part  {sequence}replica  MiB"]
    schedule = plan.pipeline.get("schedule", "1f1b")
    for rank, place in enumerate(layout(world, stages, placement, tensor, context)[:_SHOWN]):
        own = [e for e in plan.predicted["stages"] if seat_of(e["stage"], stages, schedule) == place.pipeline]
        names = ",".join(str(entry["stage"]) for entry in own)
        part = f"{place.tensor + 1} of {tensor}" if tensor > 1 else "-"
        mib = sum(entry["memory_mib"] for entry in own)
        where = f"{rank // ranks_per_host:4d}  " if ranks_per_host else ""
        of_sequence = f"{f'{place.context + 1} of {context}':>13}  " if context > 1 else ""
        lines.append(f"{rank:4d}  {where}{names:>6}  {part:>11}  {of_sequence}{place.batch:7d}  {mib:.0f}")
    if world > _SHOWN:
        lines.append(f"and so on, to rank {world - 1}")
    return [*lines, *_sharded(plan)]


def _sharded(plan: Plan) -> list[str]:
    degrees = plan.degrees
    if degrees.get("sharded", 1) > 1:
        return [f"of that, parameters, gradients and optimizer states are sharded over {degrees['sharded']} replicas"]
    if degrees.get("shard_optimizer_state"):
        return [f"of that, optimizer states are shared out over {degrees['replicas']} replicas"]
    return []
