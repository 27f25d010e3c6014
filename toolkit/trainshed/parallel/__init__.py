"""Training of any PyTorch model in parallel: in stages, in parts, with shards.

    import trainshed.parallel as pipe

    pipe.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    model = pipe.ParallelModel(model)
    optimizer = pipe.ParallelOptimizer(torch.optim.AdamW(model.parameters()))

    @pipe.step
    def train_step(model, x, y):
        loss = F.cross_entropy(model(x), y)
        model.backward(loss)
        return loss

    loss = train_step(model, x, y).reduce_mean()
    optimizer.step()

Importing this package does not import torch; using one of its names does.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.wire.pipeline import PipelineSettings as Settings

    from .checkpoint import load_checkpoint, prune_checkpoints, save_checkpoint
    from .clip import GradScaler, clip_grad_norm_
    from .ground.errors import NotServed, PipelineError, PlanError, TraceMismatch
    from .ground.errors import PipelineError as ParallelError
    from .groups import (
        cp_group,
        cp_rank,
        cp_size,
        dp_group,
        dp_rank,
        dp_size,
        local_rank,
        local_size,
        num_microbatches,
        pp_group,
        pp_rank,
        pp_size,
        rank,
        rdp_group,
        rdp_rank,
        rdp_size,
        size,
        tp_group,
        tp_rank,
        tp_size,
    )
    from .model import PipelineModel
    from .model import PipelineModel as ParallelModel
    from .optimizer import PipelineOptimizer
    from .optimizer import PipelineOptimizer as ParallelOptimizer
    from .plan.plan_file import Plan, load_plan
    from .split import StepOutput
    from .start import (
        delayed_initialization,
        init,
        is_initialized,
        partition,
        set_context_parallelism,
        set_tensor_parallelism,
        shutdown,
        tensor_parallelism,
    )
    from .step_function import step

__all__ = [
    "GradScaler",
    "NotServed",
    "ParallelError",
    "ParallelModel",
    "ParallelOptimizer",
    "PipelineError",
    "PipelineModel",
    "PipelineOptimizer",
    "Plan",
    "PlanError",
    "Settings",
    "StepOutput",
    "TraceMismatch",
    "clip_grad_norm_",
    "cp_group",
    "cp_rank",
    "cp_size",
    "delayed_initialization",
    "dp_group",
    "dp_rank",
    "dp_size",
    "init",
    "is_initialized",
    "load_checkpoint",
    "load_plan",
    "local_rank",
    "local_size",
    "num_microbatches",
    "partition",
    "pp_group",
    "pp_rank",
    "pp_size",
    "prune_checkpoints",
    "rank",
    "rdp_group",
    "rdp_rank",
    "rdp_size",
    "save_checkpoint",
    "set_context_parallelism",
    "set_tensor_parallelism",
    "shutdown",
    "size",
    "step",
    "tensor_parallelism",
    "tp_group",
    "tp_rank",
    "tp_size",
]
_GROUPS = ("cp_group", "cp_rank", "cp_size", "dp_group", "dp_rank", "dp_size", "local_rank", "local_size",
           "num_microbatches", "pp_group", "pp_rank", "pp_size", "rank", "rdp_group", "rdp_rank", "rdp_size", "size",
           "tp_group", "tp_rank", "tp_size")  # fmt: skip
_HOMES = {
    "GradScaler": "clip",
    "NotServed": "ground.errors",
    "PipelineError": "ground.errors",
    "PipelineModel": "model",
    "PipelineOptimizer": "optimizer",
    "Plan": "plan.plan_file",
    "PlanError": "ground.errors",
    "StepOutput": "split",
    "TraceMismatch": "ground.errors",
    "clip_grad_norm_": "clip",
    "delayed_initialization": "start",
    "init": "start",
    "is_initialized": "start",
    "load_checkpoint": "checkpoint",
    "load_plan": "plan.plan_file",
    "partition": "start",
    "prune_checkpoints": "checkpoint",
    "save_checkpoint": "checkpoint",
    "set_context_parallelism": "start",
    "set_tensor_parallelism": "start",
    "shutdown": "start",
    "step": "step_function",
    "tensor_parallelism": "start",
    **dict.fromkeys(_GROUPS, "groups"),
}


# Models train in parallel, in stages or not; the classes have kept their first names.
_SAME = {"ParallelError": "PipelineError", "ParallelModel": "PipelineModel", "ParallelOptimizer": "PipelineOptimizer"}


def __getattr__(name: str) -> object:
    from importlib import import_module

    name = _SAME.get(name, name)

    if name == "Settings":
        return import_module("trainshed.contract.wire.pipeline").PipelineSettings
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
