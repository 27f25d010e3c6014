"""What ranks do to check the exchange of gradients: each function returns what its rank found."""

from __future__ import annotations

import copy
import gc
import io
import os
import signal
import threading
import uuid
from contextlib import nullcontext, redirect_stderr
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainshed.parallel import data
from trainshed.parallel.data.algorithms import Algorithms, store_of
from trainshed.parallel.data.bucket_plan import BucketPlan
from trainshed.parallel.data.drift import Steadiness
from trainshed.parallel.data.host_layout import layout_of
from trainshed.parallel.data.reducing import Reducing

BUCKET = 4096  # bytes


class Model(nn.Module):
    """Odd sizes, a gradient larger than many buckets, parameters that some steps do not use, halves beside floats."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(7, 211)
        self.second = nn.Linear(211, 37, bias=False)
        self.sometimes = nn.Linear(37, 5)
        self.scale = nn.Parameter(torch.ones(37, dtype={"halves": torch.bfloat16}.get(kind, torch.float32)))
        self.precise = nn.Parameter(torch.ones(3, dtype=torch.float64)) if kind == "halves" else None
        self.turn = nn.Parameter(torch.ones(37, dtype=torch.complex64)) if kind == "complex" else None

    def forward(self, x: torch.Tensor, use: bool) -> torch.Tensor:
        x = self.second(self.first(x).tanh()) * self.scale.float()
        if self.precise is not None:
            x = x * self.precise.sum().float()
        if self.turn is not None:
            x = (x * self.turn * (1 + 2j)).abs()
        return self.sometimes(x).sum() if use else x.sum()


def started() -> None:
    """Joins the ranks, if that was not done."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def reducing(model: DDP, algorithm: str, hosts: list[int], small: bool = False, seconds: float = 60) -> Reducing:
    """A model whose gradients go that way from now on."""
    box = [uuid.uuid4().hex]
    dist.broadcast_object_list(box, 0)
    algorithms = Algorithms(layout_of(hosts), dist.get_rank(), store_of(box[0]), timedelta(seconds=seconds))
    algorithms.make(sorted({algorithm, "direct"} - {"flat"}))
    made = Reducing(model, algorithms)
    made.begin(model, BucketPlan(algorithm, small, BUCKET, 1.0))
    return made


def options_of(kind: str) -> dict[str, Any]:
    """How DDP is made in a case."""
    return {
        "unused": {"find_unused_parameters": True},
        "frozen": {"find_unused_parameters": True},
        "frozen view": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        "view": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
        "static unused": {"static_graph": True, "find_unused_parameters": False},
    }.get(kind, {})


def compare(algorithm: str, hosts: list[int], kind: str, small: bool = False) -> list[float]:
    """The largest difference from DDP's gradients, relative to the largest of them, by step (`difference`).

    The exchange is changed after two steps, and changed back after six. In the kinds `frozen` a layer is frozen in between
    from step 3 to 5.
    """
    started()
    plain = DDP(Model(kind), **options_of(kind))
    ours = DDP(copy.deepcopy(plain.module), **options_of(kind))
    generator = torch.Generator().manual_seed(10 + dist.get_rank())
    found, made = [], None
    for step in range(9):
        if step == 2:
            made = reducing(ours, algorithm, hosts, small)
        if step == 6:
            assert made is not None
            made.end(ours)
        batches = [torch.randn(3, 7, generator=generator) for _ in range(2)]
        use = not (kind == "unused" and step % 2) and kind != "static unused"
        for model in (plain, ours):
            if kind.startswith("frozen"):
                model.module.second.requires_grad_(step not in (3, 4))
            model.zero_grad(set_to_none=step % 3 != 1)
            with model.no_sync() if kind == "no_sync" else nullcontext():
                model(batches[0], use).backward()
            if kind == "no_sync":
                model(batches[1], use).backward()
        found.append(difference(plain, ours))
    return found


def difference(plain: nn.Module, ours: nn.Module) -> float:
    """Between the gradients of two models, relative; 9 where the ranks do not have the same."""
    worst = 0.0
    for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is None or other.grad is None:
            continue
        theirs = [torch.empty_like(other.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(theirs, other.grad.contiguous())
        if any(not torch.equal(theirs[0], each) for each in theirs):
            return 9.0
        worst = max(worst, float(((one.grad - other.grad).abs().max() / one.grad.abs().max().clamp(min=1e-9)).item()))
    return worst


def whole(reduce: str, hosts: list[int]) -> tuple[list[float], str, list[str], list[str]]:
    """Differences from DDP by step, what was said, what looks at the model then, and what is left of us after it."""
    started()
    groups = len(dist.distributed_c10d._world.pg_map)
    plain = DDP(Model(""))
    ours = DDP(copy.deepcopy(plain.module))
    said, found = io.StringIO(), []
    with redirect_stderr(said):
        data.accelerate(ours, reduce, hosts=hosts)
        copied = copy.deepcopy(ours.module)
        for step in range(20):
            batch = torch.randn(3, 7, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
            for model in (plain, ours):
                model.zero_grad()
                with torch.no_grad():
                    model(batch, True)  # an evaluation between steps is not one
                model(batch, True).backward()
            found.append(difference(plain, ours))
    looking = [name for name in ours.__dict__ if name == "join_hook"]
    looking += ["hook"] * len(ours._forward_pre_hooks)
    looking += ["watch" for one in ours.parameters() if one._post_accumulate_grad_hooks]
    left = ["group"] * (len(dist.distributed_c10d._world.pg_map) - groups)
    del ours, model, copied
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("trainshed-reduce"):
            thread.join(20)
            left += [thread.name] * thread.is_alive()
    return found, said.getvalue(), looking, left


def refused() -> dict[str, str]:
    """What is said of models that are left to DDP, on rank 0, and of wrong arguments."""
    started()
    hosts = [0] * (dist.get_world_size() - 1) + [1]
    sparse = DDP(nn.Embedding(5, 3, sparse=True))
    hooked = DDP(nn.Linear(2, 2))
    hooked.register_comm_hook(None, _no_exchange)
    found = {}
    for name, model, given in (
        ("sparse", sparse, {"hosts": hosts}),
        ("hooked", hooked, {"hosts": hosts}),
        ("one host", DDP(nn.Linear(2, 2)), {}),
        ("off", DDP(nn.Linear(2, 2)), {"reduce": "off"}),
    ):
        said = io.StringIO()
        with redirect_stderr(said):
            assert data.accelerate(model, **given) is model
        assert not model._forward_pre_hooks
        found[name] = said.getvalue()
    later = DDP(nn.Linear(2, 2))
    frozen = DDP(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), find_unused_parameters=True)
    for name, model in (("later", later), ("frozen", frozen), ("joined", DDP(nn.Linear(2, 2)))):
        said = io.StringIO()
        with redirect_stderr(said):
            data.accelerate(model, "exact", hosts=hosts)
            for step in range(10):
                if step == 3 and name == "later":
                    model.register_comm_hook(None, _no_exchange)
                if step == 3 and name == "frozen":
                    model.module[0].requires_grad_(False)
                with model.join() if name == "joined" and step == 3 else nullcontext():
                    for _ in range(1 + (dist.get_rank() if name == "joined" and step == 3 else 0)):
                        model(torch.ones(1, 2)).sum().backward()
        assert not model._forward_pre_hooks
        found[name] = said.getvalue()
    for name, wrong in (("value", {"reduce": "fast"}), ("hosts", {"hosts": [0]})):
        try:
            data.accelerate(DDP(nn.Linear(2, 2)), **wrong)
        except ValueError as error:
            found[name] = str(error)
    return found


def frozen_without_asking(algorithm: str, hosts: list[int]) -> tuple[list[str], list[str]]:
    """What DDP says, and ours, of a parameter that is frozen while it was not told that some may be unused."""
    started()
    plain = DDP(Model(""))
    ours = DDP(copy.deepcopy(plain.module))
    said: tuple[list[str], list[str]] = ([], [])
    reducing(ours, algorithm, hosts)
    for model, lines in zip((plain, ours), said, strict=True):
        for step in range(4):
            model.module.second.requires_grad_(step < 2)
            try:
                model(torch.ones(1, 7), True).backward()
            except RuntimeError as error:
                lines.append(f"{step}: {str(error).split('.')[0]}")
    return said


def thawed(when: int) -> tuple[float, str]:
    """The worst difference from DDP's gradients, each rank's own, and what was said.

    A layer that is frozen as DDP is made is trained from step `when` on; a layer that is not is frozen for some steps after
    gradients have begun to go by a plan. All is decided anew then.
    """
    started()
    module = Model("")
    module.first.requires_grad_(False)
    plain = DDP(module, find_unused_parameters=True)
    ours = DDP(copy.deepcopy(plain.module), find_unused_parameters=True)
    worst, said = 0.0, io.StringIO()
    anew = patch.multiple(Steadiness, changed=lambda *_: "slower", steps_to_look=lambda _: 21)
    with redirect_stderr(said), anew:
        data.accelerate(ours, "exact", hosts=[0, 0, 1, 1])
        for step in range(65):
            batch = torch.randn(3, 7, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
            for model in (plain, ours):
                model.module.first.requires_grad_(step >= when)
                model.module.second.requires_grad_(not 18 <= step < 60)
                model.zero_grad()
                model(batch, True).backward()
            for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
                assert (one.grad is None) == (other.grad is None)
                if one.grad is not None and other.grad is not None:
                    off = (one.grad - other.grad).abs().max() / one.grad.abs().max().clamp(min=1e-9)
                    worst = max(worst, float(off.item()))
    assert not ours._forward_pre_hooks
    return worst, said.getvalue()


def _no_exchange(_, bucket):  # type: ignore[no-untyped-def]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def killed(algorithm: str, hosts: list[int]) -> str:
    """What a backward raises on the other ranks when one is killed in the middle of it."""
    started()
    model = DDP(Model(""))
    reducing(model, algorithm, hosts, seconds=30)
    model(torch.ones(1, 7), True).backward()
    if dist.get_rank() == 1:
        model.module.first.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    try:
        model(torch.ones(1, 7), True).backward()
    except RuntimeError as error:
        return str(error)
    return ""
