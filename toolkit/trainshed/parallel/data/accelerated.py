"""The call that has DDP's gradients exchanged in less time, and what it leaves to DDP."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainshed.contract.settings import REDUCTIONS

from .autotune import Decision, say
from .ddp_buckets import refusal
from .host_layout import found_layout
from .power_sgd import PowerSGD


def accelerate(
    model: DistributedDataParallel, reduce: str = "auto", *, hosts: Sequence[int] | None = None
) -> DistributedDataParallel:
    """Exchanges a model's gradients in less time where hosts are joined by slow links. Collective; returns the same model.

    DDP goes on as it is for some steps, which are watched; then the links are measured and the exchange is changed, or not;
    a line says which, and one more says after some steps what was gained. Where that is nothing, DDP gets its gradients
    back. When steps later become much slower or faster for good, links are measured again, and all is decided anew.

    Args:
        model: as it was just made, on all ranks of its process group.
        reduce: `auto` (the same sums in another order, where that gains), `exact` (the same sums, in the way that should be
            best, whatever it gains), `bf16` (as `auto`, and gradients may be rounded to bfloat16 between hosts, summed in
            float32), `powersgd` (gradients of low rank, `PowerSGD` with its defaults, on several hosts), or `off`.
        hosts: for each rank of the process group the number of its host; by default ranks find that out (`GROUP_RANK`, as
            torchrun sets it, or the host's name).

    Raises:
        TypeError: the model is not a DistributedDataParallel.
        ValueError: `reduce` is none of these, or `hosts` has not one number for each rank.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"accelerate() takes a DistributedDataParallel, not a {type(model).__name__}")
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce = {reduce!r}: not one of {', '.join(REDUCTIONS)}")
    idle = reduce == "off" or dist.get_world_size(model.process_group) == 1
    if idle and hosts is None:
        return model
    layout = found_layout(hosts, model.process_group)
    if idle:
        return model
    reason = "all ranks are on one host" if len(layout.hosts) == 1 else "" if reduce == "powersgd" else refusal(model)
    if not reason and reduce == "powersgd":
        reason = _compress(model)
    elif not reason:
        Decision(model, reduce, layout)
    if reason:
        say(reduce, dist.get_rank(model.process_group), f"left to DDP: {reason}")
    return model


def _compress(model: DistributedDataParallel) -> str:
    """Why it cannot be done, "" where it is."""
    try:
        PowerSGD(model)
    except ValueError as error:
        return str(error)
    say(
        "powersgd",
        dist.get_rank(model.process_group),
        "what it keeps is in no checkpoint: data.PowerSGD by hand has it there",
    )
    return ""
