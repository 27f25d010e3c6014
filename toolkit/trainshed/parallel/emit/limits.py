"""What no emitted file has, whatever its parts: refused before anything is tried."""

from __future__ import annotations

from torch import nn

from trainshed.contract.wire.pipeline import PipelineSettings

from ..ground.halves import BATCH_NORM
from ..plan.plan_file import Plan
from .calls import NotEmitted

# Settings that change what a step computes or keeps, and that a short file leaves out.
_LEFT_OUT = (
    *("bf16", "fp16", "master_weights", "fp8", "activation_checkpointing"),
    *("offload_activations", "offload_optimizer_state"),
)
_SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
ENGINE = "leave it out, or use the engine: `distribution: parallel`"


def schedule_of(plan: Plan) -> str:
    """The class of torch that runs the plan's order of work.

    Raises:
        NotEmitted: it has several stages on a rank.
    """
    name = str(plan.pipeline.get("schedule"))
    if name not in _SCHEDULES:
        raise NotEmitted(
            f"the schedule {name} is not emitted: torch scales gradients of what two stages of a rank share twice",
            hint="--pipeline simple or interleaved, or use the engine",
        )
    microbatches = plan.pipeline.get("microbatches", 1)
    if name == "1f1b" and microbatches < plan.stages:
        raise NotEmitted(
            f"torch's 1F1B needs a microbatch for each stage, and the plan has {microbatches} for {plan.stages} stages",
            hint="--microbatches, or --pipeline simple",
        )
    return _SCHEDULES[name]


def check_settings(settings: PipelineSettings) -> None:
    """Raises:
    NotEmitted: a setting of the job has no place in a file.
    """
    given = settings.given()
    for name in _LEFT_OUT:
        if given.get(name) not in (None, False, "off"):
            raise NotEmitted(f"the file has no {name}", hint=ENGINE)
    if settings.context_parallel_degree > 1:
        raise NotEmitted(
            "context_parallel_degree: torch divides the sequences of its own attention alone, not masks and positions",
            hint=ENGINE,
        )


def check_model(root: nn.Module, *, tensor: int, sharded: int, draws: bool) -> None:
    """Raises:
    NotEmitted: a module does something else on several ranks than in one process.
    """
    if tensor > 1 and draws:
        raise NotEmitted(
            "the forward draws random numbers (dropout?): tensor ranks would draw the same ones for different parts",
            hint="set dropout to 0, or use the engine",
        )
    for name, module in root.named_modules():
        if isinstance(module, BATCH_NORM) and not isinstance(module, nn.SyncBatchNorm):
            raise NotEmitted(
                f"{name!r} normalizes by the rows of its rank alone, one process by all rows",
                hint="nn.SyncBatchNorm.convert_sync_batchnorm(model) first",
            )
    kinds = {one.dtype: name for name, one in root.named_parameters()}
    if sharded > 1 and len(kinds) > 1:
        names = list(kinds.values())
        raise NotEmitted(f"{names[0]!r} and {names[1]!r} have different types: fully_shard gathers one type", hint=ENGINE)
