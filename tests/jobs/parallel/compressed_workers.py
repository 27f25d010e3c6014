"""What ranks do to check gradients of low rank, and those rounded on the wire: each function returns what its rank found."""

from __future__ import annotations

import io
import os
import shutil
import signal
import tempfile
from contextlib import redirect_stderr
from typing import Any

import torch
import torch.distributed as dist
from data_workers import reducing, started
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainshed.checkpoint import Checkpointer
from trainshed.parallel import data

START = 3  # steps with whole gradients
CAP = 0.02  # MiB of a bucket: there are several, and DDP lays them out anew after the first step


def model(seed: int = 0) -> nn.Module:
    """Shapes that occur twice, apart from each other; a bias, a convolution, and one matrix that is not worth it."""
    torch.manual_seed(seed)
    body = [nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 80), nn.Tanh(), nn.Linear(80, 96), nn.Tanh(), nn.Linear(96, 80)]
    return nn.Sequential(nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 3, 3, padding=1), Mean(), *body, nn.Linear(80, 3))


class Mean(nn.Module):
    """Over channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def train(wrapped: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, bad: int = -1) -> None:
    """Some steps; the gradient of one is not finite on one rank, and the optimizer leaves that out."""
    for step in range(first, last):
        draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(16, 64, generator=draw)
        loss = nn.functional.mse_loss(wrapped(x), x[:, :3] * x[:, 3:6])
        optimizer.zero_grad()
        (loss * float("inf") if step == bad and dist.get_rank() == 1 else loss).backward()
        if all(bool(one.grad.isfinite().all()) for one in wrapped.parameters() if one.grad is not None):
            optimizer.step()


def made(folder: str | None, **options: Any) -> tuple[Any, Any, Any, Checkpointer]:
    """A model whose gradients are compressed, its optimizer, and its checkpoints."""
    wrapped = DDP(model(), bucket_cap_mb=CAP, **options)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05, momentum=0.9)
    compressed = data.PowerSGD(wrapped, rank=2, start=START)
    extra = {"compressed": compressed}
    return (
        wrapped,
        optimizer,
        compressed,
        Checkpointer(folder, model=wrapped, optimizer=optimizer, extra=extra, every_steps=1000),
    )


def resumed(stop: int, way: str) -> dict[str, Any]:
    """Whether a training that was interrupted after `stop` steps ends with the weights of one that was not."""
    started()
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, 0)
    said = io.StringIO()
    options = {"static_graph": True} if way == "static" else {"find_unused_parameters": True} if way == "unused" else {}
    with redirect_stderr(said):
        whole, optimizer, _, _ = made(None, **options)
        train(whole, optimizer, 0, 14)
        first, optimizer, compressed, checkpoints = made(str(box[0]), **options)
        train(first, optimizer, 0, stop)
        before = compressed.state_dict()
        checkpoints.save(stop)
        checkpoints.close()
        dist.barrier()
        second, optimizer, compressed, checkpoints = made(str(box[0]), **options)
        found = checkpoints.restore()
        after = compressed.state_dict()
        train(second, optimizer, stop, 14)
        checkpoints.close()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(str(box[0]))
    pairs = list(zip(whole.parameters(), second.parameters(), strict=True))
    return {
        "step": found,
        "same": all(torch.equal(one, other) for one, other in pairs),
        "away": max(float((one - other).abs().max()) for one, other in pairs),
        "state": all(_alike(before[name], after[name]) for name in ("errors", "factors", "draw", "steps")),
        "kept": sum(one is not None for one in before["errors"]),
        "said": said.getvalue(),
    }


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one.view(-1), other.view(-1))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def spoiled() -> dict[str, Any]:
    """A gradient that is not finite: whether later ones are, and alike on all ranks."""
    started()
    with redirect_stderr(io.StringIO()):
        wrapped, optimizer, compressed, _ = made(None)
    train(wrapped, optimizer, 0, 12, bad=6)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, [one.detach() for one in wrapped.parameters()])
    errors = [one for one in compressed.state_dict()["errors"] if one is not None]
    return {
        "finite": all(bool(one.isfinite().all()) for one in (*wrapped.parameters(), *errors)),
        "alike": all(torch.equal(one, other) for one, other in zip(every[0], every[-1], strict=True)),
        "kept": len(errors),
    }


def killed() -> str:
    """What a backward raises on the other ranks when one is killed in the middle of it, once gradients are compressed."""
    started()
    with redirect_stderr(io.StringIO()):
        wrapped, optimizer, _, _ = made(None)
    train(wrapped, optimizer, 0, START + 2)
    if dist.get_rank() == 1:
        wrapped.module[1].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    try:
        train(wrapped, optimizer, START + 2, START + 3)
    except RuntimeError as error:
        return str(error)
    return ""


def refused() -> dict[str, str]:
    """What is said of what cannot be compressed."""
    started()

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.scale = nn.Parameter(torch.tensor(1.0))

    hooked = DDP(nn.Linear(2, 2))
    hooked.register_comm_hook(None, lambda _, bucket: torch.futures.Future())
    compressed = data.PowerSGD(DDP(nn.Linear(64, 64)), rank=2)
    other = data.PowerSGD(DDP(nn.Linear(64, 64)), rank=3)
    tries = {
        "plain": lambda: data.PowerSGD(nn.Linear(2, 2)),  # type: ignore[arg-type]
        "start": lambda: data.PowerSGD(DDP(nn.Linear(2, 2)), start=1),
        "hooked": lambda: data.PowerSGD(hooked),
        "scalar": lambda: data.PowerSGD(DDP(Scaled())),
        "sparse": lambda: data.PowerSGD(DDP(nn.Embedding(5, 3, sparse=True))),
        "other": lambda: other.load_state_dict(compressed.state_dict()),
    }
    found = {}
    for name, attempt in tries.items():
        try:
            attempt()
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    said = io.StringIO()
    with redirect_stderr(said):
        compressed.load_state_dict({**compressed.state_dict(), "world": 8})
        for body in (nn.Linear(64, 64), Scaled()):
            data.accelerate(DDP(body), "powersgd", hosts=list(range(dist.get_world_size())))
    return {**found, "said": said.getvalue()}


def losses(way: str, seeds: int, steps: int) -> list[float]:
    """Of digits held out, after a training with each seed: `exact`, `bf16` between hosts, or `powersgd`."""
    started()
    from sklearn.datasets import load_digits

    world, rank = dist.get_world_size(), dist.get_rank()
    x, y = (torch.tensor(one) for one in load_digits(return_X_y=True))
    x = x.float() / 16
    found = []
    for seed in range(seeds):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        held, rest = order[:400], order[400:]
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
        wrapped = DDP(net)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        exchange = None
        with redirect_stderr(io.StringIO()):
            if way == "powersgd":
                data.PowerSGD(wrapped, rank=4, start=20)
            elif way == "bf16":
                exchange = reducing(wrapped, "bf16", list(range(world)))
        draw = torch.Generator().manual_seed(100 * seed + rank)
        for _ in range(steps):
            batch = rest[torch.randint(len(rest), (16,), generator=draw)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(x[batch]), y[batch]).backward()
            optimizer.step()
        if exchange is not None:
            exchange.end(wrapped)
        with torch.no_grad():
            found.append(nn.functional.cross_entropy(net(x[held]), y[held]).item())
    return found
