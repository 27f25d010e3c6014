"""Training steps until a stop, as a CUDA graph where there is a GPU; tells the losses, by which a resume is checked."""

from __future__ import annotations

import argparse
import os

import torch
from _device import CUDA, DEVICE, synchronize, tell

from trainshed.checkpoint import Checkpointer


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    torch.manual_seed(0)
    width = options.width
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width), torch.nn.Linear(width, 1)
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=CUDA)
    x, y = torch.randn(256, width, device=DEVICE), torch.randn(256, 1, device=DEVICE)
    loss = torch.zeros((), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        value = torch.nn.functional.mse_loss(model(x), y)
        value.backward()
        optimizer.step()
        loss.copy_(value.detach())

    for one in model.parameters():
        one.grad = torch.zeros_like(one)
    graph = None
    if CUDA:
        kept = [one.detach().clone() for one in model.parameters()]
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        with torch.no_grad():  # the steps before the graph were for it alone
            for one, before in zip(model.parameters(), kept, strict=True):
                one.copy_(before)
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
    checkpointer = Checkpointer(os.environ["SM_CHECKPOINT_DIR"], model=model, optimizer=optimizer, every_seconds=3600)
    done = first = checkpointer.restore()
    losses = {}
    while done < options.steps:
        if graph is not None:
            graph.replay()
        else:
            step()
        done += 1
        if done - first <= 50:
            losses[done] = loss.item()
        if done == first + 20:
            print("stepping", flush=True)
        if checkpointer.step(done):
            break
    synchronize()
    checkpointer.close()
    tell(done=done, first=first, losses=losses)


if __name__ == "__main__":
    main()
