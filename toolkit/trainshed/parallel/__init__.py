"""Pipeline parallelism for any PyTorch model.

    import trainshed.parallel as pipe

    pipe.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    model = pipe.PipelineModel(model)
    optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters()))

    @pipe.step
    def train_step(model, x, y):
        loss = F.cross_entropy(model(x), y)
        model.backward(loss)
        return loss

    loss = train_step(model, x, y).reduce_mean()
    optimizer.step()

Importing this package imports torch; nothing else of trainshed imports it.
"""

from __future__ import annotations

from trainshed.contract.wire.pipeline import Settings

from .clip import GradScaler, clip_grad_norm_
from .errors import NotServed, PipelineError, PlanError, TraceMismatch
from .gather import load_checkpoint, save_checkpoint
from .model import PipelineModel
from .optimizer import PipelineOptimizer
from .plan.plan_file import Plan, load_plan
from .split import StepOutput
from .start import (
    dp_group,
    dp_rank,
    dp_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    num_microbatches,
    partition,
    pp_group,
    pp_rank,
    pp_size,
    rank,
    shutdown,
    size,
)
from .step import step

__all__ = [
    "GradScaler",
    "NotServed",
    "PipelineError",
    "PipelineModel",
    "PipelineOptimizer",
    "Plan",
    "PlanError",
    "Settings",
    "StepOutput",
    "TraceMismatch",
    "clip_grad_norm_",
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
    "rank",
    "save_checkpoint",
    "shutdown",
    "size",
    "step",
]
