"""What ranks do in test_float8: torchao computes products as a GPU would, emulated."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel import float8


def emulated() -> Any:
    """torchao's configuration."""
    from torchao.float8 import Float8LinearConfig

    return Float8LinearConfig(emulate=True, pad_inner_dim=True)


def model() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32)) for _ in range(4)]
    return nn.Sequential(nn.Linear(6, 32), *blocks, nn.Linear(32, 3))


def batches() -> list[torch.Tensor]:
    return list(torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(1)))


def alone(parts: int) -> dict[str, torch.Tensor]:
    """torchao by hand, in one process."""
    from torchao.float8 import convert_to_float8_training

    module = convert_to_float8_training(
        model(), config=emulated(), module_filter_fn=lambda one, _: min(one.in_features, one.out_features) == 32
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for x in batches():
        optimizer.zero_grad()
        for part in x.chunk(parts):
            (module(part).square().mean() / parts).backward()
        optimizer.step()
    return dict(module.state_dict())


def trained(settings: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """State, and which Linears compute in float8."""
    with patch.object(float8, "_config", emulated), patch("trainshed.parallel.start.check_float8"):
        pipe.init({**settings, "fp8": True})
        made = model()
        optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(made.parameters(), lr=1e-2))  # before the model is wrapped
        wrapped = pipe.PipelineModel(made)

    @pipe.step
    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        model.backward(loss)
        return loss

    for x in batches():
        optimizer.zero_grad()
        step(wrapped, x.chunk(pipe.dp_size())[pipe.dp_rank()])
        optimizer.step()
    kinds = [name for name, one in wrapped.module.named_modules() if type(one).__name__ == "Float8Linear"]
    return wrapped.state_dict(), kinds
