"""The ranks and process groups of the pipeline, as a script asks for them.

All raise PipelineError before `init`.
"""

from __future__ import annotations

import torch.distributed as dist

from .ground.errors import PipelineError
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
    """Number of this replica, from 0: what to split data by. Each rank of a tensor group counts, for it has data of its own
    unless `prescaled_batch` is set (then split by `rdp_rank`); a context group is one replica."""
    here = grid()
    return here.place.replica if here.context is None else here.context.twins.index(here.rank)


def dp_size() -> int:
    """Number of replicas."""
    here = grid()
    return len(here.replica_ranks) if here.context is None else len(here.context.twins)


def tp_rank() -> int:
    """Rank in this tensor group, from 0."""
    here = grid()
    return here.tensor.ranks.index(here.rank) if here.tensor is not None else 0


def tp_size() -> int:
    """Ranks that the parameters of a module are divided among."""
    here = grid()
    return len(here.tensor.ranks) if here.tensor is not None else 1


def rdp_rank() -> int:
    """Number of this tensor group among the replicas, from 0: what to split data by with `prescaled_batch`. Tensor groups
    that divide sequences among them are one replica."""
    here = grid()
    return here.joint.twins.index(here.rank) if here.joint is not None else dp_rank()


def rdp_size() -> int:
    """Number of tensor groups; without tensor parallelism that of replicas."""
    here = grid()
    return len(here.joint.twins) if here.joint is not None else dp_size()


def tp_group() -> dist.ProcessGroup:
    """Process group of this tensor group.

    Raises:
        PipelineError: there is no tensor parallelism.
    """
    here = grid()
    if here.tensor is None:
        raise PipelineError("there is no tensor group", hint="set tensor_parallel_degree to 2 or more")
    return here.tensor.group


def rdp_group() -> dist.ProcessGroup:
    """Process group of the ranks that hold the same parts of parameters, and with context groups compute the same places."""
    here = grid()
    return here.joint.twin_group if here.joint is not None else dp_group()


def pp_group() -> dist.ProcessGroup:
    """Process group of this pipeline."""
    return grid().pipeline_group


def dp_group() -> dist.ProcessGroup:
    """Process group of the replicas: ranks that hold the same stages; with context groups, those at this rank's place in
    the others, of all tensor groups."""
    here = grid()
    return here.replica_group if here.context is None else here.context.twin_group


def cp_rank() -> int:
    """Rank in this context group, from 0."""
    here = grid()
    return here.context.ranks.index(here.rank) if here.context is not None else 0


def cp_size() -> int:
    """Ranks that a sequence is divided among; they are given the same batch."""
    here = grid()
    return len(here.context.ranks) if here.context is not None else 1


def cp_group() -> dist.ProcessGroup:
    """Process group of this context group.

    Raises:
        PipelineError: there is no context parallelism.
    """
    here = grid()
    if here.context is None:
        raise PipelineError("there is no context group", hint="set context_parallel_degree to 2 or more")
    return here.context.group


def num_microbatches() -> int:
    """Parts that a batch is split into."""
    return grid().settings.microbatches
