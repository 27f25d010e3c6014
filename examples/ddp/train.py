"""Distributed data parallel in plain PyTorch, interrupted and resumed without a lost step.

The task is made up: which of two interleaved spirals does a point belong to? Nothing is downloaded.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from trainshed.checkpoint import Checkpointer, ResumableLoader, ResumableSampler


def spirals(points: int) -> TensorDataset:
    """`points` points of shape (2,) and the number of their spiral, 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(points) % 2
    turn = torch.rand(points, generator=generator)
    angle = 9 * turn + torch.pi * label
    radius = 0.1 + turn
    place = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(place + 0.02 * torch.randn(points, 2, generator=generator), label)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64, help="samples a step, all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    options = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    data = spirals(4096)
    loader = ResumableLoader(
        DataLoader(data, batch_size=options.batch_size // dist.get_world_size(), sampler=ResumableSampler(len(data)))
    )

    checkpointer = Checkpointer.for_job(model=model, optimizer=optimizer, data=loader)
    step = checkpointer.restore()
    while loader.sampler.epoch < options.epochs:
        for points, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(points.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            step += 1
            if checkpointer.step(step):
                return  # the job is being stopped, and everything is saved
        if dist.get_rank() == 0:
            print(f"metric loss={loss.item():.4f} epoch={loader.sampler.epoch} step={step}", flush=True)

    if dist.get_rank() == 0:
        places, labels = (tensor.to(device) for tensor in data.tensors)
        accuracy = (model.module(places).argmax(dim=1) == labels).float().mean().item()
        print(f"metric accuracy={accuracy:.4f} epoch={options.epochs} step={step}", flush=True)
        torch.save(model.module.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
