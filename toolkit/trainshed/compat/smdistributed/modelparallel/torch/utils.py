"""Small functions of Amazon's library that scripts import."""

from __future__ import annotations

import torch

from trainshed.parallel.groups import pp_rank, rank


def get_distribution_axis(_parameter: torch.Tensor) -> int | None:
    """Axis along which a parameter is split over tensor parallel ranks: None, it is whole."""
    return None


def rmsg(message: object) -> str:
    """The message with this rank's number in front of it."""
    return f"[rank {rank()}, stage {pp_rank()}] {message}"
