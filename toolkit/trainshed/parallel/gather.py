"""Whole states of model and optimizer, in plain PyTorch's form, from the parts that the ranks hold, and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .engine.checking import meet, meet_with_replicas
from .engine.holding import Holding
from .engine.object_collectives import MODEL_STATE, OPTIMIZER_STATE, PARTIAL_STATE, objects
from .ground.errors import PipelineError
from .ground.halves import is_half
from .ground.shards import like, state_like, whole
from .lbfgs import refuse_state
from .masters import is_bare, keep_exact, loading, settle

State = dict[str, Any]


def gather_model(holding: Holding, everywhere: bool) -> State:
    """All parameters and buffers on the CPU with the module's own names, tied ones under each name. Collective.

    Args:
        everywhere: whether all ranks of the pipeline get them; else its first rank alone, the others an empty dictionary.
    """
    grid, root = holding.grid, holding.root
    meet(grid, MODEL_STATE)
    here = grid.place.pipeline
    homes = holding.buffer_owners()  # first: it asks for the state, at which FSDP puts its shards in place
    tensors = {**dict(root.named_parameters()), **dict(root.named_buffers())}
    # A forward may have made buffers, or others, where it ran alone.
    mine = {name: (tensors[name].shape, tensors[name].dtype) for name, home in homes.items() if home == here}
    owners: dict[str, int] = {}
    facts: dict[str, tuple[torch.Size, torch.dtype]] = {}
    for rank, found in enumerate(objects(MODEL_STATE, mine, grid.pipeline_ranks, grid.pipeline_group, grid.device)):
        owners.update(dict.fromkeys(found, rank))
        facts.update(found)
    if holding.placement is not None:
        owners.update({name: ranks[0] for name, ranks in holding.placement.holders.items()})
    else:
        owners.update(dict.fromkeys(holding.parameters, 0))
    keep = everywhere or here == 0
    gathered: dict[str, torch.Tensor] = {}
    for name, owner in owners.items():
        if owner == here:
            tensor = whole(tensors[name].detach()).contiguous().to(grid.device)
        else:
            shape, dtype = facts[name] if name in facts else (tensors[name].shape, tensors[name].dtype)
            tensor = torch.empty(shape, dtype=dtype, device=grid.device)
        if len(grid.pipeline_ranks) > 1:
            dist.broadcast(tensor, src=grid.pipeline_ranks[owner], group=grid.pipeline_group)
        if keep:
            gathered[name] = tensor.cpu().clone()
    names = {id(tensor): name for name, tensor in reversed(list(tensors.items()))}
    state = root.state_dict(keep_vars=True)
    whole_state = {key: gathered[names[id(value)]] for key, value in state.items() if names.get(id(value)) in gathered}
    return {**whole_state, **{name: gathered[name] for name in facts if name in gathered and name not in tensors}}


def load_model(holding: Holding, state: State, strict: bool) -> Any:
    """Copies what this rank holds out of a whole or partial state. Collective for a partial one.

    Returns:
        Missing and unexpected names, as `nn.Module.load_state_dict` does.

    Raises:
        PipelineError: (strict) names are missing or unknown.
    """
    partial = state.get("_smp_is_partial", False)
    state = {key.removeprefix("module."): value for key, value in state.items() if key != "_smp_is_partial"}
    root = holding.root
    known = root.state_dict(keep_vars=True)
    held = {id(parameter) for parameter in holding.parameters.values()} | {id(buffer) for buffer in root.buffers()}
    if partial:
        state = _with_parts(holding, state, {key for key, value in known.items() if id(value) in held}, everyone=False)
        found = {id(known[key]): value for key, value in state.items() if key in known}  # tied ones have one name there
        state = {**{key: found[id(value)] for key, value in known.items() if id(value) in found}, **state}
    if not holding.partitioned:
        found = root.load_state_dict(state, strict=strict)
        if any(map(is_half, root.parameters())):
            holding.when_partitioned(lambda: _keep_exact(holding, state))
        return found
    missing = [key for key, value in known.items() if id(value) in held and key not in state]
    unexpected = [key for key in state if key not in known]
    if strict and (missing or unexpected):
        raise PipelineError(f"the state does not fit the model: missing {missing[:3]}, unknown {unexpected[:3]}")
    with torch.no_grad():
        for key, value in known.items():
            if id(value) in held and key in state:
                value.copy_(like(state[key], value))
    _keep_exact(holding, state)
    return type(nn.Module().load_state_dict({}))(missing, unexpected)


def _keep_exact(holding: Holding, state: State) -> None:
    """Notes values of float32 that a state has for parameters of this rank in half precision."""
    known = {id(parameter): name for name, parameter in holding.parameters.items() if is_half(parameter)}
    for key, parameter in holding.root.state_dict(keep_vars=True).items() if known else ():
        if id(parameter) in known and key in state:
            keep_exact(holding, known[id(parameter)], parameter, state[key])


def _with_parts(holding: Holding, state: dict[str, Any], needed: set[str], everyone: bool) -> dict[str, Any]:
    """A rank's part of a state, with what the others' parts have of `needed`: the model may have been cut elsewhere when
    it was saved. Collective.

    Args:
        everyone: whether replicas have different parts as well.
    """
    grid = holding.grid
    group, count = (grid.control_group, grid.world) if everyone else (grid.pipeline_group, len(grid.pipeline_ranks))
    if count == 1:
        return state
    meet(grid, PARTIAL_STATE)
    lacking: list[Any] = [None] * count
    dist.all_gather_object(lacking, needed - state.keys(), group=group)
    wanted = sorted(set().union(*lacking))
    if not wanted:
        return state
    parts: list[Any] = [None] * count
    dist.all_gather_object(parts, {name: state[name] for name in wanted if name in state}, group=group)
    return {**{name: value for part in reversed(parts) for name, value in part.items() if name in needed}, **state}


def _whole(entry: Any) -> Any:
    """An entry of an optimizer's state; a master is a parameter. Collective where it is sharded."""
    return whole(entry.detach()) if isinstance(entry, torch.Tensor) else entry


def plain(optimizer: Any) -> torch.optim.Optimizer:
    """torch's own optimizer inside of a `PipelineOptimizer`."""
    return getattr(optimizer, "optimizer", optimizer)


def _settle(optimizer: torch.optim.Optimizer, holding: Holding) -> None:
    """Before its state is read or written: it has the parameters of now.

    Raises:
        PipelineError: its state belongs to no parameter.
    """
    refuse_state(optimizer, holding)
    holding.follow(optimizer)
    settle(optimizer, holding)


def state_by_name(optimizer: torch.optim.Optimizer, holding: Holding) -> dict[str, State]:
    """The optimizer's state on this rank: name of a parameter -> its entries."""
    _settle(optimizer, holding)
    names = holding.names
    return {names[id(p)]: dict(entry) for p, entry in optimizer.state.items() if id(p) in names}


def groups_by_name(optimizer: torch.optim.Optimizer, holding: Holding) -> list[State]:
    """The optimizer's groups, with the names of their parameters ("" for one that is not the model's)."""
    _settle(optimizer, holding)
    names = holding.names
    return [{**group, "params": [names.get(id(p), "") for p in group["params"]]} for group in optimizer.param_groups]


def local_optimizer(optimizer: torch.optim.Optimizer, holding: Holding) -> State:
    """State of this rank's parameters by name, with the groups by name. Collective where parameters are sharded, for states
    are whole here."""
    by_name = state_by_name(optimizer, holding)
    entries = {name: {key: _whole(one) for key, one in by_name[name].items()} for name in sorted(by_name)}
    return {
        "by_name": entries,
        "groups": groups_by_name(optimizer, holding),
        "_smp_is_partial": True,
    }


def gather_optimizer(optimizer: torch.optim.Optimizer, holding: Holding) -> State:
    """The whole state as `torch.optim.Optimizer.state_dict` gives it, tensors on the CPU. Collective."""
    grid = holding.grid
    everyone = grid.settings.shard_optimizer_state
    (meet_with_replicas if everyone else meet)(grid, OPTIMIZER_STATE)
    mine = {
        name: {key: value.cpu() if isinstance(value := _whole(one), torch.Tensor) else value for key, one in entry.items()}
        for name, entry in sorted(state_by_name(optimizer, holding).items())
        if not is_bare(entry)
    }
    parts: list[Any] = [None] * (grid.world if everyone else len(grid.pipeline_ranks))
    if len(parts) > 1:
        dist.all_gather_object(parts, mine, group=grid.control_group if everyone else grid.pipeline_group)
    else:
        parts = [mine]
    entries: dict[str, State] = {}
    for part in parts:
        entries.update(part)
    names = holding.names
    order = [names.get(id(p)) for group in optimizer.param_groups for p in group["params"]]
    native = optimizer.state_dict()
    state = {index: entries[name] for index, name in enumerate(order) if name in entries}
    return {"state": state, "param_groups": native["param_groups"]}


def load_optimizer(optimizer: torch.optim.Optimizer, state: State, holding: Holding | None) -> None:
    """Takes `gather_optimizer`'s or `local_optimizer`'s form. Collective for the latter.

    Args:
        holding: only the state of what it holds is taken; None takes all of it.

    Raises:
        PipelineError: the state has another number of groups, or is `local_optimizer`'s and there is no model yet.
    """
    if "by_name" in state:
        if holding is None:
            raise PipelineError("the state of an optimizer is loaded before the model is wrapped")
        everyone = holding.grid.settings.shard_optimizer_state
        entries = _with_parts(holding, state["by_name"], set(holding.parameters), everyone)
        put_state(optimizer, entries, state["groups"], holding)
        return
    if holding is not None:
        _settle(optimizer, holding)
    local = {id(p) for p in holding.parameters.values()} if holding is not None else None
    flat = [p for group in optimizer.param_groups for p in group["params"]]
    kept = {
        index: {key: state_like(key, value, flat[index]) for key, value in entry.items()}
        for index, entry in state["state"].items()
        if local is None or id(flat[index]) in local
    }
    with loading(optimizer, kept, holding) as known:
        optimizer.load_state_dict({"state": known, "param_groups": state["param_groups"]})


def put_state(optimizer: torch.optim.Optimizer, entries: dict[str, State], groups: list[State], holding: Holding) -> None:
    """Loads the state of this rank's parameters, by name.

    Raises:
        PipelineError: the optimizer has another number of groups.
    """
    _settle(optimizer, holding)
    names = holding.names
    if len(groups) != len(optimizer.param_groups):
        raise PipelineError(f"the optimizer has {len(optimizer.param_groups)} groups, the checkpoint {len(groups)}")
    flat = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {key: state_like(key, value, p) for key, value in entries[names[id(p)]].items()}
        for index, p in enumerate(flat)
        if names.get(id(p)) in entries
    }
    native = optimizer.state_dict()["param_groups"]
    merged = [{**saved, "params": own["params"]} for saved, own in zip(groups, native, strict=True)]
    with loading(optimizer, state, holding) as known:
        optimizer.load_state_dict({"state": known, "param_groups": merged})
