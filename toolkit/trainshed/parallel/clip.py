"""Gradient clipping and loss scaling over the whole model, of which a rank holds a part."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .session import grid, session
from .shards import local, whole

_native_clip = nn.utils.clip_grad_norm_


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> torch.Tensor:
    """As `torch.nn.utils.clip_grad_norm_`, with the norm of all stages' gradients, each parameter once. Collective.

    Returns:
        The norm before clipping, shape ().
    """
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    holding = session.holding
    if holding is None or not holding.partitioned or holding.names.keys().isdisjoint(map(id, given)):
        return _native_clip(given, max_norm, norm_type, error_if_nonfinite, foreach)
    if session.optimizer is not None:
        session.optimizer.unscale()
    if grid().settings.sharded_data_parallel_degree > 1:
        return whole(_native_clip(given, max_norm, norm_type, error_if_nonfinite, foreach))
    chosen = {id(parameter) for parameter in given}
    held = holding.parameters
    owned = [held[name] for name in holding.owned_names() if id(held[name]) in chosen]
    gradients = [p.grad.detach() for p in owned if p.grad is not None]
    device = grid().device
    infinite = norm_type == float("inf")
    if infinite:
        part = torch.stack([g.abs().max() for g in gradients]).max() if gradients else torch.zeros((), device=device)
    else:
        norms = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) ** norm_type for g in gradients]
        part = torch.stack(norms).sum() if norms else torch.zeros((), device=device)
    part = part.to(device).float()
    dist.all_reduce(part, dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM, group=grid().pipeline_group)
    total = part if infinite else part ** (1.0 / norm_type)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(f"the gradients' norm is {total.item()}, which cannot be clipped")
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for parameter in held.values():
        if id(parameter) in chosen and parameter.grad is not None:
            parameter.grad.mul_(factor.to(parameter.grad.device))
    return total


def install_clipping() -> None:
    """Scripts and trainers call torch's function, which would clip each rank by its own part: it becomes ours."""
    nn.utils.clip_grad_norm_ = clip_grad_norm_
    nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_


class GradScaler(torch.amp.GradScaler):
    """torch's loss scaler; a gradient that overflows on one stage skips the step on all."""

    def __init__(self, device: str | None = None, **options: Any) -> None:
        super().__init__(device or grid().device.type, **options)
        if self._enabled:
            self._lazy_init_scale_growth_tracker(grid().device)

    def _unscale_grads_(self, optimizer: Any, inv_scale: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        device = grid().device
        if grid().settings.sharded_data_parallel_degree > 1:
            worst = self._unscale_shards(optimizer, inv_scale)
        else:
            found = super()._unscale_grads_(optimizer, inv_scale, *args, **kwargs)
            worst = torch.stack([flag.to(device) for flag in found.values()]).max() if found else torch.zeros(())
        worst = worst.to(device).reshape(1).float()
        sharded = grid().settings.sharded_data_parallel_degree > 1
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=None if sharded else grid().pipeline_group)
        return {device: worst}

    def _unscale_shards(self, optimizer: Any, inv_scale: torch.Tensor) -> torch.Tensor:
        """This rank's part of each gradient; whether one of them overflowed."""
        flags = [torch.zeros(())]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shard = local(parameter.grad)
                    flags.append((~torch.isfinite(shard)).any().float().cpu())
                    shard.mul_(inv_scale.to(shard))
        return torch.stack(flags).max()
