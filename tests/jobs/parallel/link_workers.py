"""What ranks do on hosts whose links change meanwhile: each function returns what its rank found."""

from __future__ import annotations

import copy
import io
import os
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr

import torch
import torch.distributed as dist
from data_workers import Model, difference, reducing
from linked_hosts import LinkedHosts
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainshed.parallel import data
from trainshed.parallel.data import drift as steadiness

EACH = 2  # ranks of a host
TWICE = [0, 0, 1, 1]


def entered(name: str) -> LinkedHosts:
    """This rank's process group, between two hosts."""
    hosts = LinkedHosts(name, 2)
    hosts.enter(int(os.environ["RANK"]), EACH)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return hosts


def until(done: Callable[[], bool], step: Callable[[], None], most: int = 3000) -> bool:
    """Steps until rank 0 says that it is enough; whether it was before there were too many."""
    for _ in range(most):
        step()
        over = torch.tensor([int(dist.get_rank() == 0 and done())])
        dist.broadcast(over, 0)
        if over.item():
            return True
    return False


def changed_link(name: str) -> tuple[list[str], list[str], list[str], float]:
    """Lines until all was decided on fast links, until it was again on slow and on fast ones, and the worst difference."""
    hosts = entered(name)
    steadiness.BETWEEN_LOOKS, steadiness.FEWEST, steadiness._FIRST_PAUSE = 0.0, 3, 0.0
    torch.manual_seed(0)
    plain = DDP(nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]))
    ours = DDP(copy.deepcopy(plain.module))
    batch = torch.randn(4, 256, generator=torch.Generator().manual_seed(dist.get_rank()))
    found: list[list[str]] = []
    said = io.StringIO()

    def step() -> None:
        ours.zero_grad()
        ours(batch).square().sum().backward()

    def again() -> bool:
        return "reduce=bf16: steps take" in said.getvalue()

    def decided() -> bool:
        return "left to DDP" in said.getvalue() or "steps took" in said.getvalue()

    with redirect_stderr(said):
        data.accelerate(ours, "bf16")
        for megabits, done in ((None, decided), (40, again), (0, again)):
            if megabits is not None and dist.get_rank() == 0:
                hosts.limit(megabits)
            dist.barrier()
            said.seek(0)
            said.truncate()
            if not until(done, step):
                raise AssertionError(f"at {megabits} Mbit/s nothing was decided: {said.getvalue()}")
            found.append(said.getvalue().splitlines())
    plain(batch).square().sum().backward()
    return found[0], found[1], found[2], difference(plain, ours)


def cut_link(name: str, algorithm: str, seconds: float) -> tuple[int, float]:
    """Steps until the link of a host was mended again, and the worst difference from DDP's gradients on whole links."""
    hosts = entered(name)
    plain = DDP(Model(""))
    ours = DDP(copy.deepcopy(plain.module))
    reducing(ours, algorithm, TWICE, seconds=120)
    batch = torch.randn(3, 7, generator=torch.Generator().manual_seed(dist.get_rank()))
    plain(batch, True).sum().backward()
    worst, steps = 0.0, 0
    mended = threading.Event()

    def break_it() -> None:
        hosts.cut(1)
        time.sleep(seconds)
        hosts.mend(1)
        mended.set()

    def step() -> None:
        nonlocal worst, steps
        ours.zero_grad()
        ours(batch, True).sum().backward()
        worst, steps = max(worst, difference(plain, ours)), steps + 1

    step()
    if dist.get_rank() == 0:
        threading.Thread(target=break_it, daemon=True).start()
    assert until(mended.is_set, step, most=1_000_000)
    step()
    return steps, worst
