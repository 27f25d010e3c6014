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
    from trainshed.parallel.data.host_lines import Flight, Line
    from trainshed.parallel.data.quantize import rounded_sum

    rank = started()
    line, lost = Line(dist.group.WORLD, rank, world), torch.zeros(size)

    def summed(flat: torch.Tensor) -> torch.Tensor:
        nonlocal lost
        whole, lost = Flight(rounded_sum(line, flat, lost, bits)).land()
        return whole

    every = [
        torch.randn(20, size, generator=torch.Generator().manual_seed(one)) * torch.logspace(-30, 6, size)
        for one in range(world)
    ]
    whole = torch.stack(every).sum(0)
    sums, sent = torch.stack([summed(one) for one in every[rank]]), line.sent
    peaks = torch.stack([torch.nn.functional.pad(one, (0, -size % 64)).view(20, -1, 64).abs().amax(2) for one in every])
    bound = peaks.sum(0).amax(0).repeat_interleave(64)[:size] / (127 if bits == 8 else 7)
    lost = torch.zeros(size)
    return {
        "alike": alike([sums]), "sent": sent,
        "once": float(((sums[0] - whole[0]).abs() / bound).max()),
        "together": float(((sums - whole).sum(0).abs() / bound).max()),
        "zeros": float(summed(torch.zeros(size)).abs().max()),
    }  # fmt: skip


def streamed(hosts: list[int], bits: int) -> dict[str, Any]:
    """Fragments in turn, beside the computation: who agrees on what, in the end and on the way."""
    started()
    own = model()
    several = len(set(hosts)) < len(hosts)
    wrapped = DDP(own, process_group=data.host_group(hosts)) if several else own
    optimizer = torch.optim.AdamW(own.parameters(), 0.01)
    said = io.StringIO()
    with redirect_stderr(said):
        local = data.LocalSteps(
            wrapped, optimizer, every=8, hosts=hosts, bits=bits, fragments=3, overlap=5, outer_momentum=0.6
        )
    x, y = batch(10_000, 0)
    before = nn.functional.mse_loss(own.eval()(x), y).item()
    own.train()
    agreed, counts = [], []
    for step in range(43):
        train(wrapped, optimizer, step, step + 1)
        agreed.append(weights(local.outer))
        counts.append(local.exchanges)
    apart = not alike(weights(own))
    local.finish()
    after = nn.functional.mse_loss(local.outer.eval()(x), y).item()
    return {
        "same": all(alike(one) for one in agreed), "apart": apart, "ended": alike(weights(own)), "counts": counts,
        "outer": all(map(torch.equal, weights(own), weights(local.outer))), "fell": after / before,
        "exchanges": local.exchanges, "said": said.getvalue(),
    }  # fmt: skip


def as_published(fragments: int, overlap: int) -> float:
    """How far it is from Streaming DiLoCo as its paper has it, with both hosts in one process."""
    rank = started()
    every, rate, momentum, mix, steps = 6, 0.7, 0.6, 0.5 if overlap else 0.0, 40

    def plain() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 1))

    def begun(one: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(one.parameters(), 0.01)

    own = plain()
    optimizer = begun(own)
    with redirect_stderr(io.StringIO()):
        local = data.LocalSteps(
            own, optimizer, every=every, hosts=[0, 1], outer_rate=rate, outer_momentum=momentum,
            fragments=fragments, overlap=overlap,
        )  # fmt: skip
    train(own, optimizer, 0, steps)

    hosts, agreed = [plain(), plain()], plain()
    optimizers = [begun(one) for one in hosts]
    if fragments == 1:
        pieces = [list(range(8))]
    else:  # the whole tensors of four layers of 42, 42, 42 and 7 numbers
        pieces = [[0, 1], [2, 3], [4, 5, 6, 7]]
    outer = [
        torch.optim.SGD([list(agreed.parameters())[at] for at in piece], rate, momentum, nesterov=True) for piece in pieces
    ]
    away: dict[int, list[tuple[int, list[torch.Tensor]]]] = {}
    for step in range(1, steps + 1):
        for host in range(2):
            train(hosts[host], optimizers[host], step - 1, step, by=host)
        for number, piece in enumerate(pieces):
            if step % every == (number + 1) * every // fragments % every:
                gradients = []
                for at in piece:
                    there = [list(one.parameters())[at].detach() for one in hosts]
                    now = list(agreed.parameters())[at].detach()
                    gradients.append(((now - there[0]) + (now - there[1])) / 2)
                away.setdefault(step + overlap, []).append((number, gradients))
        for number, gradients in away.pop(step, []):
            for at, gradient in zip(pieces[number], gradients, strict=True):
                list(agreed.parameters())[at].grad = gradient
            outer[number].step()
            with torch.no_grad():
                for at in pieces[number]:
                    for one in hosts:
                        mine = list(one.parameters())[at]
                        mine.copy_(mix * mine + (1 - mix) * list(agreed.parameters())[at])
    pairs = [*zip(own.parameters(), hosts[rank].parameters(), strict=True)]
    pairs += zip(local.outer.parameters(), agreed.parameters(), strict=True)
    apart = max(float((one - other).detach().abs().max()) for one, other in pairs)
    local.finish()
    return apart


def beside() -> bool:
    """Whether a host takes steps while the other has not come to the exchange yet."""
    import os
    import time

    import ranks

    rank = started()
    own = model()
    optimizer = torch.optim.SGD(own.parameters(), 0.01)
    with redirect_stderr(io.StringIO()):
        local = data.LocalSteps(own, optimizer, every=8, hosts=[0, 1], fragments=2, overlap=3)
    train(own, optimizer, 0, 3)
    ahead = ranks.folder() / "ahead"
    if rank == 0:
        train(own, optimizer, 3, 6)  # the first fragment goes after step 4, and is waited for after step 7
        ahead.touch()
        train(own, optimizer, 6, 16)
    else:
        deadline = time.monotonic() + 120
        while not ahead.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.path.exists(ahead), "the other host waits in the middle of its steps"
        train(own, optimizer, 3, 16)
    local.finish()
    return alike(weights(own))


def dies(fragments: int, overlap: int, when: int) -> str:
    """What a host says of another that is killed after step `when`, in an exchange or between two."""
    import os
    import signal

    rank = started()
    own = model()
    optimizer = torch.optim.SGD(own.parameters(), 0.01)
    local = data.LocalSteps(own, optimizer, every=8, hosts=[0, 1], fragments=fragments, overlap=overlap, timeout=60)
    train(own, optimizer, 0, when)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(own, optimizer, when, 40)
    except RuntimeError as error:
        first = f"{type(error).__name__} after step {local.steps}: {error}"
    try:
        train(own, optimizer, 0, 1)
    except RuntimeError as error:
        return f"{first} | {error}" if str(error) in first else f"{first} | then {error}"
    return first


def resumed(stop: int, bits: int, fragments: int, overlap: int, _: int) -> dict[str, Any]:
    """Weights of a training that was not interrupted, and of one that was, after `stop` steps."""
    started()
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, 0)
    hosts = list(range(dist.get_world_size()))

    def made(folder: str | None) -> tuple[nn.Module, Any, Any, Checkpointer]:
        own = model()
        optimizer = torch.optim.AdamW(own.parameters(), 0.01)
        local = data.LocalSteps(own, optimizer, every=5, hosts=hosts, bits=bits, fragments=fragments, overlap=overlap)
        return own, optimizer, local, Checkpointer(folder, model=local.outer, extra={"local": local}, every_steps=1000)

    with redirect_stderr(io.StringIO()):
        whole, optimizer, local, _ = made(None)
        train(whole, optimizer, 0, 23)
        local.finish()
        first, optimizer, local, checkpoints = made(str(box[0]))
        train(first, optimizer, 0, stop)
        away = local._exchanges.away
        checkpoints.save(stop)
        checkpoints.close()
        again, optimizer, local, checkpoints = made(str(box[0]))
        step = checkpoints.restore()
        train(again, optimizer, step, 23)
        local.finish()
        checkpoints.close()
    dist.barrier()
    found = {"step": step, "same": all(map(torch.equal, weights(whole), weights(again))), "away": away}
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
        began = {"steps": local.steps, "alike": alike([*weights(local.outer), *weights(own), *local._model.speed])}
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
            if case in ("fragments", "many", "overlap", "mix"):
                options = {"fragments": {"fragments": 5}, "many": {"fragments": 7, "every": 9}, "overlap": {"overlap": 4}}
                data.LocalSteps(own, optimizer, hosts=hosts, **{"every": 4} | options.get(case, {"mix": 1.0}))
            own[1].weight.requires_grad_(case != "unfrozen")
            late = {"fragments": 2, "overlap": 1} if case.endswith("late") else {}
            local = data.LocalSteps(own, optimizer, every=4, hosts=hosts, **late)
            train(own, optimizer, 0, 1)
            if case == "fewer, late" and rank == 1:
                local.finish()
            train(own, optimizer, 1, 2)
            if case.startswith("nan") and rank == 1:
                with torch.no_grad():
                    next(own.parameters())[0, 0] = float("nan")
            if case == "fewer" and rank == 1:
                local.finish()
            if case == "frozen, once":
                local.finish()
            if case.startswith("frozen"):
                next(own.parameters()).requires_grad_(False)
            if case == "frozen, once":
                local = data.LocalSteps(own, optimizer, every=4, hosts=hosts)
            if case == "unfrozen":
                own[1].weight.requires_grad_(True)
            train(own, optimizer, 2, 5)
            local.finish()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
