"""The ranks and process groups of the pipeline, as a script asks for them.

All raise PipelineError before `init`.
"""

from __future__ import annotations

import torch.distributed as dist

from .session import grid


def rank() -> int:
    """Global rank."""
    return grid().rank


def size() -> int:
    """Number of ranks."""
    return grid().world


def local_rank() -> int:
    """Rank on this host."""
    return grid().local_rank


def local_size() -> int:
    """Ranks on this host."""
    return grid().local_world


def pp_rank() -> int:
    """Rank in this pipeline, from 0."""
    return grid().place.pipeline


def pp_size() -> int:
    """Ranks of a pipeline."""
    return len(grid().pipeline_ranks)


def dp_rank() -> int:
    """Number of this replica, from 0: what to split data by."""
    return grid().place.replica


def dp_size() -> int:
    """Number of replicas."""
    return len(grid().replica_ranks)


def pp_group() -> dist.ProcessGroup:
    """Process group of this pipeline."""
    return grid().pipeline_group


def dp_group() -> dist.ProcessGroup:
    """Process group of the ranks that hold the same stages."""
    return grid().replica_group


def num_microbatches() -> int:
    """Parts that a batch is split into."""
    return grid().settings.microbatches
