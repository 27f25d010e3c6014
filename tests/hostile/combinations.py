"""Numbers of ranks and schedules that cases are played on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MICROBATCHES = 4


@dataclass(frozen=True)
class Combination:
    """ranks: of one pipeline; none is one process without a pipeline. virtual: stages on each rank."""

    name: str
    ranks: int = 0
    pipeline: str = "interleaved"
    virtual: int = 1

    def settings(self) -> dict[str, Any]:
        """For `pipe.init`."""
        return {
            "pipeline_parallel_degree": self.ranks,
            "microbatches": MICROBATCHES,
            "pipeline": self.pipeline,
            "virtual_stages": self.virtual,
        }


ALONE = Combination("alone")
ROUND = [
    one
    for ranks in (2, 4)
    for one in (
        Combination(f"{ranks}-1f1b", ranks),
        Combination(f"{ranks}-interleaved", ranks, "interleaved1f1b", 2),
        Combination(f"{ranks}-zerobubble", ranks, "interleavedzerobubble", 2),
    )
]
# The first and the last stage on one rank.
AND_BACK = [Combination("2-zbv", 2, "zbvzerobubble", 2), Combination("4-dualpipev", 4, "dualpipev", 2)]
COMBINATIONS = {one.name: one for one in (*ROUND, *AND_BACK)}
