"""Starts of ranks of which some are killed: what a test says, and what its workers do."""

from __future__ import annotations

from typing import Any, NamedTuple


class Start(NamedTuple):
    """Ranks that train from the newest checkpoint on.

    last: so many steps are in the checkpoint when they end.
    killed: where in the next step: in its "backward", when its checkpoint is "written", or "published"; else they end well.
    delayed: whether the model is built without values.
    """

    world: int
    settings: dict[str, Any]
    last: int
    killed: str = ""
    delayed: bool = False

    @property
    def replicas(self) -> int:
        """How many batches a step has."""
        given = self.settings
        own = 1 if not given.get("prescaled_batch") else given["tensor_parallel_degree"]
        return self.world // (given.get("partitions", 1) * own)

    @property
    def seeded(self) -> bool:
        """Whether each microbatch has random numbers of its own, as in stages, or goes on where the one before has ended."""
        divided = self.settings.get("tensor_parallel_degree", 1) > 1
        return "partitions" in self.settings or (divided and self.delayed) or not self.settings
