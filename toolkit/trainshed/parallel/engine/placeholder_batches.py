"""Batches of ranks that read no data: they give empty tensors, and get those of the first rank of their pipeline."""

from __future__ import annotations

from typing import Any

import torch

from ..ground.grid import Grid
from ..ground.tree import map_leaves, tensors
from .batch import Microbatch
from .checking import compare
from .object_collectives import SUPPLY
from .outputs import Post


def empties(microbatches: list[Microbatch]) -> int:
    """How many tensors without elements there are."""
    return sum(1 for tensor in tensors(microbatches) if not tensor.numel())


def supply(grid: Grid, microbatches: list[Microbatch]) -> list[Microbatch]:
    """The microbatches with the first rank's tensors in place of empty ones. Collective over the pipeline.

    Raises:
        PipelineError: the ranks do not give the same number of tensors.
    """
    own = tensors(microbatches)
    compare(grid, SUPPLY, str(len(own)), "calls the step with another number of tensors")
    first = grid.pipeline_ranks[0]
    given = Post().share([own] if grid.rank == first else None, first, grid.pipeline_group, grid.device)[0]
    source = iter(given)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        other = next(source)
        return leaf if leaf.numel() else other

    return map_leaves(filled, microbatches)
