"""Runs that are killed and go on with other degrees, and the same training in one process without a break."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kill_starts import Start
from torch import nn
from trust.tensor import Gpt
from workers import CPU, begin

import trainshed.parallel as pipe
from trainshed.checkpoint import folder
from trainshed.parallel.tracing import rng


class _Lethal(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient


class Lethal(nn.Module):
    """Gives what it is given, until its backward kills the process."""

    def forward(self, x: torch.Tensor) -> Any:
        return _Lethal.apply(x)


def build() -> nn.Module:
    """With dropout, a tied table, and parameters that make no equal parts."""
    torch.manual_seed(3)
    module = Gpt()
    module.blocks[1] = nn.Sequential(Lethal(), module.blocks[1])
    return module.train()


def adam(parameters: Any) -> torch.optim.Optimizer:
    """The bias of keys has no gradient but what rounding leaves of one, which is not to become steps."""
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-4)


def batch(number: int) -> torch.Tensor:
    """The tokens of a step, of all replicas."""
    return torch.randint(1, 53, (8, 8), generator=torch.Generator().manual_seed(number))


def run(start: Start, path: str) -> dict[str, torch.Tensor]:
    """The state at the end. Saves after each step; before that rank 0 adds a line with loss and norm to `path`.lines."""
    begin({"microbatches": 2, **start.settings})
    with pipe.delayed_initialization(start.delayed):
        module = build()
    model = pipe.PipelineModel(module)
    update = pipe.PipelineOptimizer(adam(model.parameters()))
    first = pipe.load_checkpoint(path, model, update) if Path(path).exists() else 0
    own = not start.settings.get("prescaled_batch")
    place, count = (pipe.dp_rank(), pipe.dp_size()) if own else (pipe.rdp_rank(), pipe.rdp_size())
    assert count == start.replicas

    @pipe.step
    def train(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=x, labels=x).loss
        model.backward(loss)
        return loss

    for number in range(first, start.last + bool(start.killed)):
        if number == start.last and start.killed == "backward":
            _Lethal.backward = staticmethod(_die)  # type: ignore[method-assign,assignment]
        torch.manual_seed(100 * number + place)
        update.zero_grad()
        loss = train(model, batch(number).chunk(count)[place]).reduce_mean().detach().clone()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        update.step()
        dist.all_reduce(loss)
        if pipe.rank() == 0:
            with open(f"{path}.lines", "a") as file:
                file.write(json.dumps([number, float(loss) / start.world, float(norm)]) + "\n")
        if number == start.last and start.killed == "written" and pipe.rank() == start.world - 1:
            os.fsync = _die
        if number == start.last and start.killed == "published" and pipe.rank() == 0:
            folder._exchange = _die
        pipe.save_checkpoint(path, model, update, number + 1)
    return model.state_dict()


def _die(*_args: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def in_one_process(starts: Sequence[Start]) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """Loss and norm of each step, and the state at the end, with the random numbers of each start's ranks."""
    module, found = build(), []
    update = adam(module.parameters())
    for number in range(starts[-1].last):
        start = next(one for one in starts if number < one.last)
        update.zero_grad()
        losses = []
        for place, part in enumerate(batch(number).chunk(start.replicas)):
            torch.manual_seed(100 * number + place)
            seed = int(torch.randint(0, 2**62, (1,))) if start.seeded else 0
            for position, x in enumerate(part.chunk(2)):
                if start.seeded:
                    rng.set_state(rng.state_of_seed(seed + position, CPU), CPU)
                loss = module(input_ids=x, labels=x).loss
                (loss / 2 / start.replicas).backward()
                losses.append(float(loss.detach()))
        found.append([sum(losses) / len(losses), float(nn.utils.clip_grad_norm_(module.parameters(), 0.5))])
        update.step()
    return found, module.state_dict()
