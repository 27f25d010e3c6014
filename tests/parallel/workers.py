"""What the ranks of the tests run."""

from __future__ import annotations

from typing import Any

import torch
import zoo
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.frontend import rng

CPU = torch.device("cpu")
MICROBATCHES = 4


class Plain(nn.Module):
    """The zoo's step functions in one process: `backward` is PyTorch's own."""

    def __init__(self, module: nn.Module, scale: float) -> None:
        super().__init__()
        self.module, self.scale = module, scale

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.scale).backward()


def one_process(name: str, seed: int = 0, microbatches: int = MICROBATCHES, steps: int = 1, draws: bool = False) -> dict[str, Any]:
    """Gradients of the first step and parameters after `steps` SGD steps, in plain PyTorch."""
    model, inputs, step = zoo.build(name, seed)
    plain = Plain(model, 1 / microbatches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(7)
    gradients: dict[str, torch.Tensor] = {}
    for number in range(steps):
        optimizer.zero_grad()
        draw = int(torch.randint(0, 2**62, (1,))) if draws else 0
        after = rng.get_state(CPU)
        for part in range(microbatches):
            if draws:
                torch.manual_seed(draw + part)
            length = inputs[0].shape[0] // microbatches
            step(plain, *[value[part * length : (part + 1) * length] for value in inputs])
        rng.set_state(after, CPU)
        if number == 0:
            gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return {"gradients": gradients, "state": {n: v.clone() for n, v in model.state_dict().items()}}


def pipeline(names: list[str], degree: int, schedule: str, virtual: int, steps: int = 1) -> dict[str, Any]:
    """Trains each model in a pipeline; what this rank has of gradients and parameters."""
    found: dict[str, Any] = {}
    settings = {
        "pipeline_parallel_degree": degree,
        "microbatches": MICROBATCHES,
        "pipeline": schedule,
        "virtual_stages": virtual,
    }
    pipe.init(settings)
    from trainshed.parallel.state import session

    for name in names:
        session.model = None
        model, inputs, step_function = zoo.build(name)
        model = pipe.PipelineModel(model)
        optimizer = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        step = pipe.step(step_function)
        torch.manual_seed(7)
        for number in range(steps):
            optimizer.zero_grad()
            step(model, *inputs)
            if number == 0:
                gradients = {n: p.grad.clone() for n, p in model.local_named_parameters() if p.grad is not None}
            optimizer.step()
        found[name] = {"gradients": gradients, "state": model.state_dict(), "plan": model.plan}
    return found
