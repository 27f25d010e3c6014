"""A small model in two stages, against the same model in one process: losses, memory, time a step."""

from __future__ import annotations

import argparse
import os
import time

import torch
from _device import CUDA, DEVICE, synchronize, tell
from torch import nn
from torch.nn.functional import cross_entropy

import trainshed.parallel as pipe


def build(width: int, layers: int) -> nn.Module:
    """A deep network whose layers cost the same."""
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(nn.Linear(32, width), *hidden, nn.Linear(width, 10))


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--switches", default="", help="settings of the pipeline that are on, with commas between")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--divide", choices=["pipeline", "tensor", "auto"], default="pipeline", help="what the ranks divide")
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    switches = dict.fromkeys(filter(None, options.switches.split(",")), True)
    # `degrees: auto` says what memory the step should take.
    degrees = {"degrees": "auto"} if options.divide == "auto" else {f"{options.divide}_parallel_degree": world}
    states = 0 if options.optimizer == "sgd" else 2
    pipe.init({**degrees, "microbatches": 4, "optimizer_states": states, **switches})
    model = pipe.PipelineModel(build(options.width, options.layers))
    make = torch.optim.SGD if options.optimizer == "sgd" else torch.optim.AdamW
    optimizer = pipe.PipelineOptimizer(make(model.parameters(), lr=0.1 if options.optimizer == "sgd" else 1e-4))

    @pipe.step
    def train_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(x), y)
        model.backward(loss)
        return loss

    generator = torch.Generator().manual_seed(1)
    losses, seconds = [], []
    for _ in range(options.steps):
        x = torch.randn(64, 32, generator=generator).to(DEVICE)
        y = torch.randint(0, 10, (64,), generator=generator).to(DEVICE)
        synchronize()
        began = time.perf_counter()
        optimizer.zero_grad()
        losses.append(train_step(model, x, y).reduce_mean().item())
        optimizer.step()
        synchronize()
        seconds.append(time.perf_counter() - began)
        if len(seconds) == 1 and CUDA:
            planning = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
    memory = {"planning": planning, "training": torch.cuda.max_memory_allocated()} if CUDA else {}
    if pipe.rank() == 0:
        tell(losses=losses, seconds=seconds[2:], **memory)
    pipe.shutdown()


if __name__ == "__main__":
    main()
