"""Gradient clipping and loss scaling over the whole model, of which a rank holds a part.

Scripts and libraries import torch's functions by name before there is a pipeline: ours is put wherever a module has torch's.
What else holds torch's clipping (a partial, a default of a function) has the whole norm, too, for which it asks by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .engine.checking import meet
from .engine.object_collectives import CLIP, SCALE
from .engine.remote_parameters import AbsentParameter
from .ground.shards import local, norms, whole
from .ground.torch_private import UNSCALE, its
from .local_parts import refuse_local
from .masters import refuse_plain
from .mixing import refuse_mixing
from .optimizer_check import OptimizerCheck, check_norm
from .reads import install as install_reads
from .session import grid, session


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> torch.Tensor:
    """As `torch.nn.utils.clip_grad_norm_`, with the norm of all stages' gradients, each parameter once. Collective.

    Returns:
        The norm before clipping, shape ().
    """
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    holding = session.holding
    ours = holding is not None and holding.partitioned and not holding.names.keys().isdisjoint(map(id, given))
    if ours and session.optimizer is not None:
        session.optimizer.unscale()
    if ours and grid().tensor is not None and not _divided():
        gradients = [p.grad for p in given if p.grad is not None]
        with torch.no_grad():
            total = _norm_of_parts(gradients, norm_type, error_if_nonfinite)
            if len(named := _named(given)) == len(gradients):
                check_norm(total, named, norm_type)
            factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
            for gradient in gradients:
                local(gradient).mul_(factor.to(gradient.device))
        return total
    if not ours or not _divided() or session.holding is None:
        with torch.no_grad():
            norm = _native_clip(given, max_norm, norm_type, error_if_nonfinite, foreach)
        return whole(norm)
    known = session.holding.names
    chosen = {known[id(parameter)] for parameter in given if id(parameter) in known}
    mine = {name: p.grad for name, p in session.holding.parameters.items() if name in chosen and p.grad is not None}
    others = [p.grad for p in given if id(p) not in known and p.grad is not None]
    with torch.no_grad():
        total = _total_norm(mine, others, norm_type, error_if_nonfinite)
        if not others:
            check_norm(total, mine.items(), norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for gradient in [*mine.values(), *others]:
            local(gradient).mul_(factor.to(gradient.device))
    return total


def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> torch.Tensor:
    """As `torch.nn.utils.get_total_norm`; where the tensors are gradients of the model, with those of all stages.

    Collective over the pipeline for gradients of the model, and for an empty list, for a rank may hold none of them.

    Returns:
        The norm, shape ().
    """
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    here = session.grid
    parts = any(isinstance(one, DTensor) for one in given)
    if here is not None and here.tensor is not None and parts and not _divided():
        return _norm_of_parts(given, norm_type, error_if_nonfinite)
    if not _divided() or session.holding is None:
        norm = _native_norm(given, norm_type, error_if_nonfinite, foreach)
        if given and session.holding is not None:
            memory = {_memory(tensor) for tensor in given}
            named = [(n, g) for n, g in session.holding.parts_of_gradients() if _memory(g) in memory]
            if len(named) == len(given):
                check_norm(norm, named, norm_type, together=parts)
        return norm
    memory = {_memory(tensor) for tensor in given}
    held = session.holding.parameters
    mine = {n: p.grad for n, p in held.items() if p.grad is not None and _memory(p.grad) in memory}
    if given and not mine:
        return _native_norm(given, norm_type, error_if_nonfinite, foreach)
    own = {_memory(gradient) for gradient in mine.values()}
    others = [tensor for tensor in given if _memory(tensor) not in own]
    return _total_norm(mine, others, norm_type, error_if_nonfinite)


def _named(parameters: Sequence[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Names and gradients of the model's own parameters that have one."""
    known = session.holding.names if session.holding is not None else {}
    return [(known[id(one)], one.grad) for one in parameters if id(one) in known and one.grad is not None]


def _norm_of_parts(gradients: Sequence[torch.Tensor], norm_type: float, error_if_nonfinite: bool) -> torch.Tensor:
    """The norm of gradients of which some are divided among the ranks of a tensor group. Collective over these, and over
    those that have shards."""
    here = grid()
    if here.tensor is None:
        raise RuntimeError("there is no tensor group")
    norm_type = float(norm_type)
    meet(here, CLIP)
    if not gradients:
        return torch.zeros((), device=here.device)
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms(gradients, norm_type)).to(here.device), norm_type)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(f"the gradients' norm is {total.item()}, which cannot be clipped")
    return total


def _memory(tensor: torch.Tensor) -> int:
    """The same for tensors in the same memory, of which a part may have no elements and no memory of its own."""
    return id(local(tensor).untyped_storage())


def _divided() -> bool:
    """Whether the ranks of a pipeline hold different parameters now."""
    holding = session.holding
    return holding is not None and holding.placement is not None and len(holding.grid.pipeline_ranks) > 1


def _total_norm(
    mine: dict[str, torch.Tensor], others: Sequence[torch.Tensor], norm_type: float, error_if_nonfinite: bool
) -> torch.Tensor:
    """The norm of the gradients on all ranks of the pipeline.

    Args:
        mine: name -> gradient of this rank's parameters.
        others: gradients that are not the model's; those of the last stage's rank count, which computes the losses.
    """
    holding, here = session.holding, grid()
    if holding is None or holding.placement is None:
        raise RuntimeError("the model is not divided")
    norm_type = float(norm_type)
    numbers = {name: number for number, name in enumerate(holding.placement.holders)}
    table = torch.zeros(2, len(numbers) + 1, device=here.device)
    owned = [name for name in holding.owned_names() if name in mine]
    meet(here, CLIP)
    for name, norm in zip(owned, norms([mine[name] for name in owned], norm_type), strict=True):
        table[:, numbers[name]] = torch.stack([norm, torch.ones_like(norm)])
    if others and here.place.pipeline == holding.last:
        lengths = [torch.linalg.vector_norm(tensor.detach(), norm_type, dtype=torch.float32) for tensor in others]
        table[0, -1], table[1, -1] = torch.linalg.vector_norm(torch.stack(lengths), norm_type), 1.0
    dist.all_reduce(table, group=here.pipeline_group)
    found = table[0][table[1] > 0]
    total = torch.linalg.vector_norm(found, norm_type) if len(found) else torch.zeros((), device=here.device)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(f"the gradients' norm is {total.item()}, which cannot be clipped")
    return total


_native_clip: Callable[..., torch.Tensor] = nn.utils.clip_grad_norm_
_native_norm: Callable[..., torch.Tensor] = nn.utils.get_total_norm
_native_unscale = its(torch.amp.GradScaler, UNSCALE)


def install() -> None:
    """Makes torch's clipping and loss scaling ours, under whatever name a script knows them. Without a pipeline they do
    what they always did."""
    _put_in_place_of(_native_clip, clip_grad_norm_)
    _put_in_place_of(_native_norm, get_total_norm)
    install_reads()
    if "following" not in vars(install):
        vars(install)["following"] = register_optimizer_step_pre_hook(_follow)
        for name in ("unscale_", "step", "update"):
            setattr(torch.amp.GradScaler, name, _scaled_first(getattr(torch.amp.GradScaler, name)))
    setattr(torch.amp.GradScaler, UNSCALE, _unscale_grads)


def _put_in_place_of(native: Callable[..., torch.Tensor], ours: Callable[..., torch.Tensor]) -> None:
    """In all modules but this one, under whatever names."""

    @wraps(native)
    def put(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.no_grad():
            return ours(*args, **kwargs)

    for module in [one for one in sys.modules.values() if isinstance(one, ModuleType) and one.__name__ != __name__]:
        for name in [name for name, value in vars(module).items() if value is native]:
            setattr(module, name, put)


def _scaled_first(native: Callable[..., Any]) -> Callable[..., Any]:
    """Only the rank of the last stage has scaled a loss; the others begin with the same scale here."""

    @wraps(native)
    def call(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled() and session.grid is not None:
            scaler.scale(torch.zeros((), device=session.grid.device))
        return native(scaler, *args, **kwargs)

    return call


def _follow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step of any optimizer: one that was made before parameters were sharded goes on with the shards."""
    if session.trying:
        return
    if session.holding is not None:
        session.holding.follow(optimizer)
    if session.grid is not None and session.grid.settings.master_weights and session.holding is not None:
        refuse_plain(optimizer, session.holding.names)
    _try(optimizer)
    _compare(optimizer, closure=any(one is not None for one in (*args[1:], kwargs.get("closure"))))


def _compare(optimizer: torch.optim.Optimizer, *, closure: bool) -> None:
    """In a verified step: what the optimizer makes of the model's parameters is compared when its step is over."""
    after = session.after
    if after is None or not after.due or session.comparing is not None or session.holding is None:
        return
    known = session.holding.names
    if not any(id(one) in known for group in optimizer.param_groups for one in group["params"]):
        return
    after.taken = True
    refusal = "it evaluates the loss itself" if closure else ""
    check = OptimizerCheck(after, optimizer, refusal)
    if not check.begin():
        return
    session.comparing = check
    if optimizer not in session.watched:  # before the script's own, which may change what was made
        session.watched.add(optimizer)
        handle = optimizer.register_step_post_hook(_compare_made)
        hooks: Any = handle.hooks_dict_ref()
        hooks.move_to_end(handle.id, last=False)


def _compare_made(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """After the step."""
    check = session.comparing
    if check is not None and check.is_of(optimizer):
        session.comparing = None
        check.end()


def _try(optimizer: torch.optim.Optimizer) -> None:
    """Once, where a rank moves some of the parameters alone, or parts of them."""
    here = session.grid
    if here is not None and here.world > 1 and optimizer not in session.tried_in_parts:
        session.tried_in_parts.add(optimizer)  # also while it is tried
        if not refuse_local(optimizer):
            session.tried_in_parts.discard(optimizer)
    alone = _divided() or (here is not None and here.settings.shard_optimizer_state and here.world > 1)
    if alone and optimizer not in session.tried:
        session.tried.add(optimizer)  # also while it is tried
        if not refuse_mixing(optimizer):
            session.tried.discard(optimizer)


def _unscale_grads(scaler: Any, optimizer: Any, inv_scale: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Unscales this rank's gradients; a rank that sees an overflow makes all ranks skip the step."""
    holding = session.holding
    known = holding.names if holding is not None and holding.partitioned else {}
    if not any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
        return _native_unscale(scaler, optimizer, inv_scale, *args, **kwargs)
    device = grid().device
    sharded = grid().settings.sharded_data_parallel_degree > 1 or grid().tensor is not None
    if sharded:
        if holding is not None and holding.exchanges:
            meet(grid(), SCALE)
            holding.follow(optimizer)
        worst = _unscale_shards(optimizer, inv_scale)
    else:
        found = _native_unscale(scaler, optimizer, inv_scale, *args, **kwargs)
        worst = torch.stack([flag.to(device) for flag in found.values()]).max() if found else torch.zeros(())
    worst = worst.to(device).reshape(1).float()
    if not sharded:
        meet(grid(), SCALE)
    dist.all_reduce(worst, dist.ReduceOp.MAX, group=None if sharded else grid().pipeline_group)
    return {device: worst}


def _unscale_shards(optimizer: Any, inv_scale: torch.Tensor) -> torch.Tensor:
    """This rank's part of each gradient; whether one of them overflowed."""
    flags = [torch.zeros(())]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = None if isinstance(parameter, AbsentParameter) else parameter.grad
            if gradient is not None:
                shard = local(gradient)
                flags.append((~torch.isfinite(shard)).any().float().cpu())
                shard.mul_(inv_scale.to(shard))
    return torch.stack(flags).max()


class GradScaler(torch.amp.GradScaler):
    """torch's loss scaler on the device of this rank."""

    def __init__(self, device: str | None = None, **options: Any) -> None:
        install()
        super().__init__(device or grid().device.type, **options)
        if self.is_enabled():
            self.scale(torch.zeros((), device=grid().device))
