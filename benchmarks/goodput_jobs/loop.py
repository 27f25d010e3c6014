"""What each variant of goodput.py trains: a GPT over data that follow from the step and the rank, with a line for each step.

A line of `log.RANK` in BENCH_LOG is an object: {"start": step, "pid", "at"} of a process that goes on from a step, or
{"step", "loss", "at", "durable"} of a step that is finished, its checkpoint included. `durable`: the newest checkpoint.
"""

from __future__ import annotations

import json
import os
import time
from typing import Protocol

import torch
import torch.distributed as dist
from _decoder import Block
from torch import nn

WORDS, LENGTH, BATCH = 512, 64, 4


class Saver(Protocol):
    """How a variant keeps its state. durable: the step of its newest checkpoint."""

    durable: int

    def restore(self) -> int:
        """Loads the newest state; how many steps it has made."""

    def step(self, step: int) -> None:
        """Saves where it is time."""

    def close(self) -> None:
        """Waits until all is kept."""


class Gpt(nn.Module):
    """A decoder of so many layers."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next tokens."""
        return self.head(self.blocks(self.embed(tokens) + self.places))


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer, the same on each rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(int(os.environ["BENCH_LAYERS"]), int(os.environ["BENCH_WIDTH"])).eval()  # without dropout
    wrapped = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    return wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-3)


def batch(step: int, rank: int) -> torch.Tensor:
    """Counting from somewhere: what a model learns soon."""
    begin = torch.randint(WORDS, (BATCH, 1), generator=torch.Generator().manual_seed(1_000 * step + rank))
    return (begin + torch.arange(LENGTH + 1)) % WORDS


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """The loss of a step's batch."""
    tokens = batch(step, rank)
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, saver: Saver) -> None:
    """Steps until BENCH_LOG has a file `over`, or BENCH_STEPS are made."""
    rank, folder, steps = int(os.environ["RANK"]), os.environ["BENCH_LOG"], int(os.environ["BENCH_STEPS"])
    log = os.open(f"{folder}/log.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**told: float) -> None:
        os.write(log, (json.dumps({**told, "at": time.time()}) + "\n").encode())

    step = saver.restore()
    note(start=step, pid=os.getpid())
    while step < steps and not _over(folder):
        loss = loss_of(model, step, rank)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        saver.step(step)
        note(step=step, loss=loss.item(), durable=saver.durable)
    saver.close()


def _over(folder: str) -> bool:
    """Whether any rank has seen that the time is over."""
    told = torch.tensor(os.path.exists(f"{folder}/over"), dtype=torch.int32)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return bool(told)
