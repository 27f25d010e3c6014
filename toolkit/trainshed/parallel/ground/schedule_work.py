"""The pieces of a step's work, and which rank of a pipeline has which stage."""

from __future__ import annotations

from typing import NamedTuple

from trainshed.contract.wire.pipeline import V_SHAPED


class Work(NamedTuple):
    """A piece of work for one microbatch on one stage.

    kind: "forward", "backward", "weight" or "whole". With a zero-bubble schedule "backward" is the gradients of the stage's
        inputs alone, "weight" those of its parameters, and "whole" both at once.
    """

    kind: str
    stage: int
    microbatch: int


def seat_of(stage: int, ranks: int, schedule: str) -> int:
    """The pipeline rank that has a stage: stages go round the ranks; with a V-shaped schedule there and back, so that the
    first rank has the first and the last stage.

    Args:
        ranks: of one pipeline.
        schedule: by the planner's name.
    """
    lap, at = divmod(stage, ranks)
    return ranks - 1 - at if schedule in V_SHAPED and lap % 2 else at
