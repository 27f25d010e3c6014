"""`import smdistributed.modelparallel.torch as smp`: Amazon's names (SMP v1) for `trainshed.parallel`.

Scripts that pipeline run as they are, on CPU (gloo) too. What is not supported raises `NotServed` with the alternative.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import Any

from trainshed.parallel import StepOutput, groups, start
from trainshed.parallel import step as _step
from trainshed.parallel.clip import GradScaler
from trainshed.parallel.groups import local_size, num_microbatches, rank, size
from trainshed.parallel.start import is_initialized, partition, set_tensor_parallelism
from trainshed.parallel.start import tensor_parallelism as _tensor_parallelism
from trainshed.parallel.tracing.subject import recording

from ... import unserved
from . import model, nn, optimizers, state_mod, transformers_support, utils
from .checkpoint import load, resume_from_checkpoint, save, save_checkpoint
from .model import (
    DistributedModel,
    DistributedOptimizer,
    delay_param_initialization,
    model_creation,
    set_activation_checkpointing,
    set_partition,
)
from .patches import checkpoint as _checkpoint
from .ranks import (
    CommGroup,
    RankType,
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    members,
    mp_barrier,
    process_group,
    recv_from,
    send,
)
from .state_mod import state

WORLD, MP_GROUP, DP_GROUP = CommGroup.WORLD, CommGroup.MP_GROUP, CommGroup.DP_GROUP
PP_GROUP, TP_GROUP, RDP_GROUP = CommGroup.PP_GROUP, CommGroup.TP_GROUP, CommGroup.RDP_GROUP
amp = SimpleNamespace(GradScaler=GradScaler)
patches = SimpleNamespace(checkpoint=_checkpoint)
unserved.install(__name__)
__version__ = "1.9.0"


def init(config: dict[str, Any] | None = None) -> None:
    """Joins the ranks, with `config` or the job's `mp_parameters`."""
    start.init(config)
    transformers_support.apply()


def shutdown() -> None:
    """Leaves the process group."""
    start.shutdown()


def step(function: Any = None, **options: Any) -> Any:
    """Decorates a step function: `@smp.step` or `@smp.step(non_split_inputs=[...])`."""
    transformers_support.apply()
    return _step(function, **options)


def is_tracing() -> bool:
    """Returns whether a step function runs to be recorded, not to train."""
    return recording()


def local_rank() -> int:
    """Rank on this host."""
    transformers_support.apply()
    return groups.local_rank()


def mp_rank() -> int:
    """Rank among those that hold one model: in this pipeline, or this tensor group."""
    return members(CommGroup.MP_GROUP).index(rank())


def mp_size() -> int:
    """Ranks that hold one model: of a pipeline, or of a tensor group."""
    return len(members(CommGroup.MP_GROUP))


# As `trainshed.parallel.groups` says.
pp_rank, dp_rank, rdp_rank, tp_rank = groups.pp_rank, groups.dp_rank, groups.rdp_rank, groups.tp_rank
pp_size, dp_size, rdp_size, tp_size = groups.pp_size, groups.dp_size, groups.rdp_size, groups.tp_size
# torch's process groups, and the global ranks in each, as `CommGroup` says.
get_world_process_group = partial(process_group, CommGroup.WORLD)
get_mp_process_group, get_mp_group = partial(process_group, MP_GROUP), partial(members, MP_GROUP)
get_pp_process_group, get_pp_group = partial(process_group, PP_GROUP), partial(members, PP_GROUP)
get_dp_process_group, get_dp_group = partial(process_group, DP_GROUP), partial(members, DP_GROUP)
get_rdp_process_group, get_rdp_group = partial(process_group, RDP_GROUP), partial(members, RDP_GROUP)
get_tp_process_group, get_tp_group = partial(process_group, TP_GROUP), partial(members, TP_GROUP)


def tensor_parallelism(enabled: bool = True, **_tp_config: Any) -> AbstractContextManager[None]:
    """Marks the modules that are built inside as ones to divide, or not; what else a script asks of Amazon's own modules
    concerns those alone."""
    return _tensor_parallelism(enabled)


def tp_register_with_module(*_args: Any, **_kwargs: Any) -> None:
    """Without effect: modules stay those of the script, and are divided as they are."""


def tp_register(*_args: Any, **_kwargs: Any) -> Any:
    """Decorates a tensor parallel class; without effect."""
    return lambda chosen: chosen


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise unserved.UnservedName(f"smp.{name} is not supported", hint=unserved.ALTERNATIVES.get(name, unserved.OTHERWISE))


__all__ = [
    "CommGroup", "DistributedModel", "DistributedOptimizer", "RankType", "StepOutput", "allgather", "barrier", "broadcast",
    "delay_param_initialization", "dp_barrier", "init", "is_initialized", "is_tracing", "load", "local_rank", "local_size",
    "model", "model_creation", "mp_barrier", "nn", "num_microbatches", "optimizers", "partition", "patches", "rank",
    "recv_from", "resume_from_checkpoint", "save", "save_checkpoint", "send", "set_activation_checkpointing",
    "set_partition", "set_tensor_parallelism", "shutdown", "size", "state", "state_mod", "step", "tp_register",
    "tp_register_with_module", "utils",
]  # fmt: skip
