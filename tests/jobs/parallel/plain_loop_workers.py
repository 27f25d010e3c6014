"""What ranks do to check the mean of gradients in loops without DDP: each function returns what its rank found."""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import data_workers
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from trainshed.parallel import data


class Odd(nn.Module):
    """One gradient larger than messages, several types, one that only rank 2 has, one that nobody has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(1201, 1203)
        self.scale = nn.Parameter(torch.ones(1203, dtype=torch.float64))
        self.short = nn.Parameter(torch.ones(1203, dtype=torch.bfloat16))
        self.turn = nn.Parameter(torch.ones(1203, dtype=torch.complex64))
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.single = nn.Parameter(torch.tensor(2.0))
        self.sometimes = nn.Linear(1203, 3)
        self.never = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, use: bool) -> torch.Tensor:
        x = self.first(x).tanh() * self.scale.float() * self.short.float() * self.single + self.empty.sum()
        x = (x * self.turn * (1 + 2j)).abs()
        return self.sometimes(x).sum() if use else x.sum()


def averaged(reduce: str, hosts: list[int] | None) -> list[tuple[float, list[str]]]:
    """By step: the largest difference from the mean that whole all-reduces give (9: ranks differ), and who has no gradient.

    The second step accumulates two backwards, the third has gradients whose numbers lie in another order on a rank.
    """
    data_workers.started()
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Odd()
    gradients = data.Gradients(model, reduce=reduce, hosts=hosts)
    threads, found = threading.active_count(), []
    for step in range(4):
        model.zero_grad()
        for number in range(2 if step == 1 else 1):
            seed = torch.Generator().manual_seed(100 * step + 10 * number + rank)
            model(torch.randn(3, 1201, generator=seed), rank == 2).backward()
        if step == 2 and rank == 1:
            first = model.first
            assert first.weight.grad is not None and first.bias.grad is not None
            first.weight.grad = first.weight.grad.t().contiguous().t()
            first.bias.grad = first.bias.grad[:1].expand(1203)
        wanted = {}
        for name, one in model.named_parameters():
            wanted[name] = one.grad.clone().contiguous() if one.grad is not None else torch.zeros_like(one)
            wide = wanted[name].to(torch.complex128 if one.is_complex() else torch.float64)
            dist.all_reduce(wide)
            wanted[name] = wide / world
        gradients.average()
        if step == 1:
            threads = threading.active_count()
        assert step < 2 or threading.active_count() == threads, "later calls use what the first has made"
        worst = 0.0
        for name, one in model.named_parameters():
            if one.grad is None or not one.numel():
                continue
            theirs = [torch.empty_like(one.grad).contiguous() for _ in range(world)]
            dist.all_gather(theirs, one.grad.contiguous())
            if any(not torch.equal(theirs[0], each) for each in theirs):
                worst = 9.0
            off = float(((one.grad - wanted[name]).abs().max() / wanted[name].abs().max()).item())
            if one.dtype != torch.bfloat16:
                worst = max(worst, off)
            elif off > 1e-2:  # its own rounding is less
                worst = 9.0
        found.append((worst, [name for name, one in model.named_parameters() if one.grad is None]))
    return found


def refused() -> dict[str, str]:
    """What is said, on this rank, of what cannot be averaged; each time gradients stay and all ranks go on."""
    data_workers.started()
    rank = dist.get_rank()
    hosts = [0, 0, 1, 1]
    cases: dict[str, Callable[[], Any]] = {
        "ddp": lambda: data.Gradients(DDP(nn.Linear(2, 2))),
        "shape": lambda: data.Gradients(nn.Linear(2, 3 if rank == 2 else 2)),
        "order": lambda: data.Gradients([nn.Parameter(torch.ones(size)) for size in ((2, 3) if rank else (3, 2))]),
        "number": lambda: data.Gradients([nn.Parameter(torch.ones(2))] * 1 + [nn.Parameter(torch.ones(1))] * (rank == 1)),
        "none": lambda: data.Gradients([]),
        "meta": lambda: data.Gradients(nn.Linear(2, 2, device="meta" if rank == 3 else "cpu")),
        "lazy": lambda: data.Gradients(nn.LazyLinear(2)),
        "reduce": lambda: data.Gradients(nn.Linear(2, 2), reduce="fast"),
        "hosts": lambda: data.Gradients(nn.Linear(2, 2), hosts=[0]),
        "hosts differ": lambda: data.Gradients(nn.Linear(2, 2), hosts=hosts if rank else [0, 1, 0, 1]),
    }
    found = {name: _said(case) for name, case in cases.items()}

    torch.manual_seed(rank)
    found["values"] = _said(data.Gradients(nn.Linear(2, 2), hosts=hosts).average)

    torch.manual_seed(0)
    model = nn.ModuleDict({"table": nn.Embedding(5, 2, sparse=rank == 1), "layer": nn.Linear(2, 2)})
    gradients = data.Gradients(model, hosts=hosts)
    model["layer"](model["table"](torch.tensor([rank]))).sum().backward()
    bias = model["layer"].bias
    bias.grad = torch.full((2,), float(rank))
    found["sparse"] = _said(gradients.average)
    assert torch.equal(bias.grad, torch.full((2,), float(rank))), "nothing was exchanged"
    model["table"].weight.grad = None
    gradients.average()
    found["after"] = str(bias.grad.tolist())
    if rank == 3:
        model["new"] = nn.Linear(1, 1)
    found["changed"] = _said(gradients.average)
    return found


def _said(work: Callable[[], Any]) -> str:
    try:
        work()
    except ValueError as error:
        return str(error)
    return ""


def between_hosts() -> tuple[float, str, str]:
    """How far fully_shard inside hosts and the mean between them is from torch's HSDP; what is said of a wrong group."""
    data_workers.started()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "inside"))
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 1201), nn.Tanh(), nn.Linear(1201, 1203))
    theirs, ours = copy.deepcopy(plain), copy.deepcopy(plain)
    for model, own in ((theirs, mesh), (ours, mesh["inside"])):
        fully_shard(model[2], mesh=own)
        fully_shard(model, mesh=own)
    gradients = data.Gradients(ours, group=mesh["between"].get_group())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (theirs, ours)]
    worst = 0.0
    for step in range(3):
        batch = torch.randn(5, 7, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        for model, optimizer in zip((theirs, ours), optimizers, strict=True):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            if model is ours:
                gradients.average()
            optimizer.step()
        for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
            for a, b in ((one.grad, other.grad), (one, other)):
                assert a is not None and b is not None and type(a.data) is type(b.data)
                here, there = a.to_local(), b.to_local()  # type: ignore[attr-defined]
                worst = max(worst, float(((here - there).abs().max() / here.abs().max()).item()) if here.numel() else 0.0)
    return worst, _said(lambda: data.Gradients(ours)), _said(lambda: data.Gradients(theirs, hosts=[0, 0, 1, 1]))


def killed() -> list[str]:
    """What the other ranks are told, in that call and the next, when one is killed while gradients are exchanged."""
    data_workers.started()
    model = Odd()
    gradients = data.Gradients(model, hosts=[0, 0, 1, 1])
    model(torch.ones(1, 1201), True).backward()
    gradients.average()
    if dist.get_rank() == 1:
        gradients._algorithms.average = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    said = []
    for _ in range(2):
        try:
            gradients.average()
        except RuntimeError as error:
            said.append(str(error))
    return said
