"""What a rank holds in memory of its stages, by what it is."""

from __future__ import annotations

from dataclasses import dataclass

from .plan_file import Plan
from .ways import Way


@dataclass(frozen=True)
class Held:
    """MiB of one rank, or of one stage.

    values: parameters.
    gradients: of these; float32 where parameters are in half precision.
    states: what the optimizer keeps on the device, float32 values of parameters in half precision included.
    activations: what the microbatches that are under way need for their backwards.
    """

    values: float
    gradients: float
    states: float
    activations: float = 0.0

    @property
    def all(self) -> float:
        """Of all that there is."""
        return self.values + self.gradients + self.states + self.activations

    @property
    def in_parts(self) -> float:
        """What is shared out where all is sharded: parameters in half precision are there while they are used alone, for
        float32 values of them are kept."""
        return self.gradients + self.states + (self.values if self.values >= self.gradients else 0.0)


def held_by_ranks(plan: Plan, way: Way) -> list[Held]:
    """What each rank of a pipeline holds."""
    return [_held(plan, way, rank) for rank in range(way.stages)]


def _held(plan: Plan, way: Way, rank: int) -> Held:
    own = [entry for entry in plan.predicted["stages"] if way.wish.seat(entry["stage"]) == rank]
    every, values, gradients, memory = (
        float(sum(entry[name] for entry in own)) for name in ("parameters_mib", "values_mib", "gradients_mib", "memory_mib")
    )
    return Held(values, gradients, every - values - gradients, memory - every)
