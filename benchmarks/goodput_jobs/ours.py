"""The training of goodput.py with a Checkpointer; without BENCH_EVERY it keeps nothing."""

import os

import torch
import torch.distributed as dist
from loop import build, train

from trainshed.checkpoint import Checkpointer


class Saver:
    """A Checkpointer as the loop takes it."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, every: int) -> None:
        self.checkpointer = Checkpointer.for_job(model=model, optimizer=optimizer, every_steps=every)
        self.restore, self.close = self.checkpointer.restore, self.checkpointer.close

    @property
    def durable(self) -> int:
        return self.checkpointer.last_step

    def step(self, step: int) -> None:
        self.checkpointer.step(step)


class Nothing:
    """Keeps nothing."""

    durable = 0

    def restore(self) -> int:
        return 0

    def step(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass


dist.init_process_group("gloo")
model, optimizer = build()
every = int(os.environ["BENCH_EVERY"])
train(model, optimizer, Saver(model, optimizer, every) if every else Nothing())
dist.destroy_process_group()
