"""Parameters in half precision whose gradients are float32, and of which an optimizer keeps float32 values.

torch knows the type of a gradient by `Tensor.grad_dtype`: what each backward adds is summed in float32, and so are stages
and replicas. It is also the mark of such a parameter, which is lost where another one takes its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainshed.contract.wire.pipeline import PipelineSettings

from .errors import PipelineError

HALVES = (torch.float16, torch.bfloat16)
# Their kernels take inputs of float32, which autocast hands them, with parameters of float32 alone; and statistics that
# are float32. What norms have is small.
BATCH_NORM: type[nn.Module] = nn.SyncBatchNorm.__bases__[0]  # what all of torch's batch norms are
BATCH_OR_INSTANCE_NORM: Any = BATCH_NORM.__bases__[0]
_WHOLE = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, BATCH_OR_INSTANCE_NORM, nn.Bilinear)


def half_type(settings: PipelineSettings) -> torch.dtype | None:
    """The type of parameters; None where they stay what they are."""
    if not settings.master_weights:
        return None
    return torch.float16 if settings.fp16 else torch.bfloat16


def halve(root: nn.Module, kind: torch.dtype) -> None:
    """Parameters of float32 with two dimensions or more become `kind`, those of norms excepted. What is in half precision
    already stays that, and gets gradients of float32 as well.

    Raises:
        PipelineError: this torch has gradients of their parameter's type alone.
    """
    if not hasattr(torch.Tensor, "grad_dtype"):
        raise PipelineError(
            f"master_weights needs a torch that has Tensor.grad_dtype, and this one is {torch.__version__}",
            hint="use torch 2.10 or later, or leave it out: bf16 and fp16 alone run forwards under autocast",
        )
    whole = {id(one) for module in root.modules() if isinstance(module, _WHOLE) for one in module.parameters(recurse=False)}
    for parameter in root.parameters():
        if parameter.dtype is torch.float32 and parameter.dim() > 1 and id(parameter) not in whole:
            parameter.data = parameter.data.to(kind)
        if parameter.dtype in HALVES:
            parameter.grad_dtype = torch.float32


def widen(root: nn.Module) -> None:
    """Parameters in half precision become float32."""
    for parameter in root.parameters():
        if parameter.dtype in HALVES:
            parameter.data = parameter.data.to(torch.float32)


def is_half(parameter: torch.Tensor) -> bool:
    """Returns whether an optimizer keeps float32 values of a parameter."""
    return parameter.dtype in HALVES and getattr(parameter, "grad_dtype", None) is torch.float32


def gradient_type(parameter: torch.Tensor) -> torch.dtype:
    """Of the gradient of a parameter."""
    return torch.float32 if is_half(parameter) else parameter.dtype


def no_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Zeros in the place of a gradient."""
    return torch.zeros_like(parameter, dtype=gradient_type(parameter))


def stays_half(new: nn.Parameter, old: torch.Tensor) -> nn.Parameter:
    """A parameter that takes the place of another one."""
    if is_half(old):
        new.grad_dtype = torch.float32
    return new
