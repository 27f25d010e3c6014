"""Linears whose matrix products run in float8, by torchao: what goes into a product is scaled and rounded for it.

Parameters stay what they are, so that stages, masters, optimizers and checkpoints see no difference.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from .ground.errors import PipelineError

# GPUs with units for it: Ada, Hopper and later.
_CAPABILITY = (8, 9)
# What the products ask of the sizes of a weight.
_MULTIPLE = 16


def check_float8(device: torch.device) -> None:
    """To be called before ranks meet.

    Raises:
        PipelineError: this rank cannot compute in float8.
    """
    needed = f"fp8 needs a GPU of compute capability {_CAPABILITY[0]}.{_CAPABILITY[1]} or later"
    hint = "leave out fp8; bf16 runs everywhere"
    if device.type != "cuda":
        raise PipelineError(f"{needed}, and this rank computes on {device.type}", hint=hint)
    if (found := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise PipelineError(f"{needed}, and {name} has {found[0]}.{found[1]}", hint=hint)
    if find_spec("torchao") is None:
        raise PipelineError(
            "fp8 needs torchao, which is not installed",
            hint=f"add torchao to requirements.txt, in a version for torch {torch.__version__}; or leave out fp8",
        )


def in_float8(root: nn.Module) -> nn.Module:
    """The model with Linears that compute in float8, where their sizes allow it; parameters are the same objects.

    Raises:
        PipelineError: no Linear has such sizes.
    """
    if not any(map(_fits, root.modules())):
        raise PipelineError(
            f"fp8 changes nothing: no nn.Linear of the model has sizes that {_MULTIPLE} divides", hint="leave it out"
        )
    from torchao.float8 import convert_to_float8_training

    converted: nn.Module = convert_to_float8_training(root, config=_config(), module_filter_fn=lambda one, _: _fits(one))
    return converted


def _config() -> Any:
    from torchao.float8 import Float8LinearConfig

    return Float8LinearConfig(pad_inner_dim=True)  # a microbatch may have any number of rows


def _fits(module: nn.Module) -> bool:
    # Subclasses may be read by others: attention takes the weight of its output, and computes by itself.
    if type(module) is not nn.Linear:
        return False
    return module.in_features % _MULTIPLE == 0 and module.out_features % _MULTIPLE == 0
