"""How much of a step is verified: what memory and time allow on this rank."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from torch import nn

from ...ground.grid import Grid
from ...ground.memory import SPARE, free_bytes
from ...plan.plan_file import Plan
from ..remote_parameters import AbsentParameter

# A step of the undivided model that is planned to take longer is verified by one microbatch.
_SECONDS = 30.0


class Extent(IntEnum):
    """How much of a step is verified; of several ranks the largest number counts.

    ALL: every microbatch.
    ONE: one microbatch.
    IN_PARTS: one microbatch, with the parameters of one unit at a time.
    NOTHING: there is no room even for that.
    """

    ALL = 0
    ONE = 1
    IN_PARTS = 2
    NOTHING = 3


def extent_of(
    root: nn.Module, plan: Plan | None, grid: Grid, uses: Mapping[str, frozenset[str]], microbatches: int, *, whole: bool
) -> Extent:
    """How much the first rank of a pipeline can verify beside what lies there.

    Args:
        uses: unit -> names of the parameters that it reads; "" for those that are read between units.
        microbatches: of the step.
        whole: whether all parameters are still here.
    """
    units = plan.units if plan is not None else ()
    free = free_bytes(grid.device) / _sharing(grid)
    sizes = {name: parameter.numel() * parameter.element_size() for name, parameter in root.named_parameters()}
    trained = {name for name, parameter in root.named_parameters() if parameter.requires_grad}
    away = {name for name, parameter in root.named_parameters() if isinstance(parameter, AbsentParameter)}
    activations = sum(unit.saved_mib for unit in units) * 2**20
    # What is put back afterwards: buffers, and what does not get gradients.
    copies = sum(sizes[name] for name in sizes.keys() - trained - away)
    copies += sum(buffer.numel() * buffer.element_size() for buffer in root.buffers())
    # The pipeline's own are there, too, when the undivided model has to run again.
    gradients = sum(sizes[name] for name in trained) + sum(sizes[name] for name in trained - away)
    if (activations + copies + gradients + sum(sizes[name] for name in away if not whole)) * SPARE <= free:
        seconds = sum(unit.forward_ms + unit.backward_ms for unit in units) * microbatches / 1e3
        return Extent.ONE if microbatches > 1 and seconds > _SECONDS else Extent.ALL
    parts = [sum(sizes[name] * (1 + (name in trained)) for name in names) for unit, names in uses.items() if unit]
    between = sum(sizes[name] for name in uses.get("", ()))
    casts = (grid.settings.fp16 or grid.settings.bf16) and not grid.settings.master_weights
    halves = sum(sizes.values()) / 2 if casts else 0  # autocast keeps its own copies
    needed = activations + copies + max(parts, default=0) + between + halves
    return Extent.IN_PARTS if needed * SPARE <= free else Extent.NOTHING


def has_room_for_all(root: nn.Module, grid: Grid) -> bool:
    """Returns whether this rank can take the parameters of all others, and copies of its buffers, for a forward."""
    away = [parameter for parameter in root.parameters() if isinstance(parameter, AbsentParameter)]
    needed = sum(one.numel() * one.element_size() for one in (*away, *root.buffers()))
    return needed * SPARE <= free_bytes(grid.device) / _sharing(grid)


def _sharing(grid: Grid) -> int:
    """First ranks of pipelines that share this rank's memory, which verify at the same time."""
    if grid.device.type == "cuda":
        return 1
    start = grid.rank - grid.local_rank
    return max(1, sum(place.pipeline == 0 for place in grid.places[start : start + grid.local_world]))
