"""What ranks do to check steps of their own between exchanges: each function returns what its rank found."""

from __future__ import annotations

import copy
import io
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainshed.checkpoint import Checkpointer
from trainshed.parallel import data


def started() -> int:
    """Joins the ranks, if that was not done; this one's number."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank()


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(3 + dist.get_rank())  # other weights on each rank: they are made the same
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x.to(dtype), (x[:, :1] * x[:, 1:2] + x[:, 2:3]).to(dtype)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, by: int | None = None) -> None:
    x, y = batch(0, 0)
    for step in range(first, last):
        x, y = batch(step, dist.get_rank() if by is None else by, next(module.parameters()).dtype)
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [one.detach().clone() for one in module.state_dict().values()]


def alike(tensors: list[torch.Tensor]) -> bool:
    """Whether all ranks have the same."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, tensors)
    return all(torch.equal(one, other) for theirs in every for one, other in zip(every[0], theirs, strict=True))


def each_step() -> float:
    """Difference from DDP, with an exchange after each step of plain SGD that averages the models."""
    started()
    ours = model()
    for norm in ours.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.momentum = 0.0  # DDP keeps the first rank's running means
    optimizer = torch.optim.SGD(ours.parameters(), 0.05)
    local = data.LocalSteps(
        ours, optimizer, every=1, hosts=list(range(dist.get_world_size())), outer_rate=1, outer_momentum=0
    )
    theirs = DDP(copy.deepcopy(ours))
    train(theirs, torch.optim.SGD(theirs.parameters(), 0.05), 0, 10)
    train(ours, optimizer, 0, 10)
    local.finish()
    return max(float((one - other).abs().max()) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))


def together(hosts: list[int], dtype: str, bits: int) -> dict[str, Any]:
    """Whether models are the same when they should be, and how the loss falls."""
    rank = started()
    own = model(getattr(torch, dtype))
    several = len(set(hosts)) < len(hosts)
    group = data.host_group(hosts) if several else None
    wrapped = DDP(own, process_group=group) if several else own
    optimizer = torch.optim.AdamW(own.parameters(), 0.01)
    said = io.StringIO()
    with redirect_stderr(said):
        local = data.LocalSteps(wrapped, optimizer, every=5, hosts=hosts, bits=bits)
    began = alike(weights(own))
    x, y = batch(10_000, 0, getattr(torch, dtype))
    before = nn.functional.mse_loss(own.eval()(x), y).item()
    own.train()
    train(wrapped, optimizer, 0, 8)
    apart = alike(weights(own))
    train(wrapped, optimizer, 8, 60)
    local.finish()
    after = nn.functional.mse_loss(local.outer.eval()(x), y).item()
    return {
        "rank": rank, "began": began, "apart": not apart, "ended": alike(weights(own)), "same": alike(weights(local.outer)),
        "exchanges": local.exchanges, "sent": local.sent, "fell": after / before, "said": said.getvalue(),
    }  # fmt: skip


def summed(world: int, size: int, bits: int) -> dict[str, Any]:
    """Sums of few bits: how far one is from the sum, and many together from theirs; whether all have the same."""
    from trainshed.parallel.data.few_bits import FewBits

    rank = started()
    few = FewBits(dist.group.WORLD, size, torch.device("cpu"), bits)
    every = [
        torch.randn(20, size, generator=torch.Generator().manual_seed(one)) * torch.logspace(-30, 6, size)
        for one in range(world)
    ]
    whole = torch.stack(every).sum(0)
    sums = torch.stack([few.sum(one) for one in every[rank]])
    peaks = torch.stack([torch.nn.functional.pad(one, (0, -size % 256)).view(20, -1, 256).abs().amax(2) for one in every])
    bound = peaks.sum(0).amax(0).repeat_interleave(256)[:size] / (127 if bits == 8 else 7)
    return {
        "alike": alike([sums]), "sent": few.sent,
        "once": float(((sums[0] - whole[0]).abs() / bound).max()),
        "together": float(((sums - whole).sum(0).abs() / bound).max()),
        "zeros": float(FewBits(dist.group.WORLD, size, torch.device("cpu"), bits).sum(torch.zeros(size)).abs().max()),
    }  # fmt: skip


def resumed(stop: int, bits: int = 32) -> dict[str, Any]:
    """Weights of a training that was not interrupted, and of one that was, after `stop` steps."""
    started()
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, 0)
    hosts = list(range(dist.get_world_size()))

    def made(folder: str | None) -> tuple[nn.Module, Any, Any, Checkpointer]:
        own = model()
        optimizer = torch.optim.AdamW(own.parameters(), 0.01)
        local = data.LocalSteps(own, optimizer, every=5, hosts=hosts, bits=bits)
        return own, optimizer, local, Checkpointer(folder, model=local.outer, extra={"local": local}, every_steps=1000)

    with redirect_stderr(io.StringIO()):
        whole, optimizer, local, _ = made(None)
        train(whole, optimizer, 0, 23)
        local.finish()
        first, optimizer, local, checkpoints = made(str(box[0]))
        train(first, optimizer, 0, stop)
        checkpoints.save(stop)
        checkpoints.close()
        again, optimizer, local, checkpoints = made(str(box[0]))
        step = checkpoints.restore()
        train(again, optimizer, step, 23)
        local.finish()
        checkpoints.close()
    dist.barrier()
    found = {"step": step, "same": all(map(torch.equal, weights(whole), weights(again)))}
    if dist.get_rank() == 0:
        import shutil

        shutil.rmtree(Path(str(box[0])))
    return found


def other_hosts(folder: str, first: int, last: int) -> dict[str, Any]:
    """Goes on from a checkpoint of other hosts, if there is one, and leaves one."""
    started()
    own = model()
    optimizer = torch.optim.AdamW(own.parameters(), 0.01)
    said = io.StringIO()
    with redirect_stderr(said):
        local = data.LocalSteps(own, optimizer, every=5, hosts=list(range(dist.get_world_size())), bits=8)
        checkpoints = Checkpointer(folder, model=local.outer, extra={"local": local}, every_steps=1000)
        checkpoints.restore()
        began = {"steps": local.steps, "alike": alike([*weights(local.outer), *weights(own), *local._speed])}
        outer = weights(local.outer)
        train(own, optimizer, first, last)
        checkpoints.save(last)
        checkpoints.close()
    dist.barrier()
    return {**began, "began": outer, "ended": weights(local.outer), "exchanges": local.exchanges, "said": said.getvalue()}


def wrong(case: str, _: str) -> str:
    """What is said of a mistake."""
    rank = started()
    hosts = list(range(dist.get_world_size()))
    own = model()
    optimizer = torch.optim.SGD(own.parameters(), 0.01)
    try:
        with redirect_stderr(io.StringIO()):
            if case == "ddp":
                data.LocalSteps(DDP(own), optimizer, hosts=hosts)
            if case == "plain":
                data.LocalSteps(own, optimizer, hosts=[0] * len(hosts))
            if case == "every":
                data.LocalSteps(own, optimizer, every=0, hosts=hosts)
            if case == "hosts":
                data.LocalSteps(own, optimizer, hosts=[0])
            local = data.LocalSteps(own, optimizer, every=4, hosts=hosts)
            train(own, optimizer, 0, 2)
            if case == "nan" and rank == 1:
                with torch.no_grad():
                    next(own.parameters())[0, 0] = float("nan")
            if case == "fewer" and rank == 1:
                local.finish()
            train(own, optimizer, 2, 5)
            local.finish()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
