"""Work that all ranks do or none: a failure on one of them is the same error on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from .ground.errors import PipelineError
from .ground.grid import Grid


def together(here: Grid, failed: str, action: Callable[[], None]) -> None:
    """Runs `action` on every rank. Collective.

    Args:
        failed: how the error begins: "the checkpoint PATH cannot be loaded".

    Raises:
        PipelineError: on all ranks, if it fails on one of them: `failed`, why, and on which rank.
    """
    problem: PipelineError | None = None
    try:
        action()
    except PipelineError as error:
        problem = error
    except (OSError, ValueError, RuntimeError) as error:
        problem = PipelineError(" ".join(str(error).split()) or type(error).__name__)
    mine = (problem.message, problem.hint) if problem is not None else None
    answers: list[Any] = [mine]
    if here.world > 1:
        answers = [None] * here.world
        dist.all_gather_object(answers, mine, group=here.control_group)
    for rank, answer in enumerate(answers):
        if answer is not None:
            message, hint = answer
            where = f" (rank {rank})" if here.world > 1 else ""
            raise PipelineError(f"{failed}: {message}{where}", hint=hint)
