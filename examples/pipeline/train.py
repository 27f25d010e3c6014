"""A model in two pipeline stages: each rank holds one half, and the gradients are those of the whole model."""

import argparse
import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import trainshed.parallel as pipe


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()

    pipe.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)]
    model = pipe.ParallelModel(nn.Sequential(nn.Linear(8, 64), *layers, nn.Linear(64, 2)))
    optimizer = pipe.ParallelOptimizer(torch.optim.AdamW(model.parameters(), lr=3e-3))

    @pipe.step
    def train_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(x), y)
        model.backward(loss)  # instead of loss.backward()
        return loss

    generator = torch.Generator().manual_seed(pipe.dp_rank())  # all ranks of one pipeline need the same batch
    for step in range(1, options.steps + 1):
        x = torch.randn(options.batch_size, 8, generator=generator)
        y = (x[:, 0] * x[:, 1] > 0).long()  # do the first two numbers have the same sign?
        optimizer.zero_grad()
        loss = train_step(model, x, y).reduce_mean()
        optimizer.step()
        if step % 20 == 0 and pipe.rank() == 0:
            print(f"metric loss={loss.item():.4f} step={step}", flush=True)

    weights = model.state_dict()  # gathered: all ranks call this together
    if pipe.rank() == 0:
        torch.save(weights, os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))


if __name__ == "__main__":
    main()
    pipe.shutdown()
