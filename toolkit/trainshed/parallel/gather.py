"""Checkpoints by parameter name: what any number of stages writes, any other number reads.

FOLDER/               one checkpoint; it appears under this name when it is whole
  .metadata, *.distcp torch.distributed.checkpoint: `model.NAME`, `optimizer.NAME.KEY`
  content.pt          the optimizer's groups and what the user gave (torch.load reads it with weights_only=True)
  plan.json           the plan that was in use
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from .errors import PipelineError
from .plan.plan_file import load_plan, model_fingerprint
from .session import grid, session
from .shards import like, whole

if TYPE_CHECKING:
    from .model import PipelineModel

State = dict[str, Any]


def save_checkpoint(path: str, model: PipelineModel, optimizer: Any = None, user_content: Any = None) -> None:
    """Writes model, optimizer and `user_content` to the folder `path`. Collective.

    Hosts that do not share the folder each write their ranks' files to their own; together (as a platform that uploads all
    of them to one place has them) they are the checkpoint.

    Raises:
        PipelineError: some rank could not write its part; says which and why. An older checkpoint at `path` stays then.
    """
    partial = f"{path}.partial"
    leader = grid().rank == 0
    first_of_host = grid().local_rank == 0
    _together(lambda: _fresh_folder(partial) if leader else None)
    _together(lambda: os.makedirs(partial, exist_ok=True) if first_of_host else None)
    state: State = {}
    first = grid().place.replica == 0 or grid().settings.sharded_data_parallel_degree > 1
    if first:
        state = {f"model.{name}": tensor.detach().contiguous() for name, tensor in _owned_tensors(model).items()}
    if optimizer is not None and (first or grid().settings.shard_optimizer_state):
        owned = set(model.owned_names())
        for name, entry in _by_name(_plain(optimizer)).items():
            if name in owned:
                state.update({f"optimizer.{name}.{key}": _as_tensor(value) for key, value in entry.items()})
    _together(lambda: dcp.save(state, checkpoint_id=partial, process_group=grid().control_group))
    if leader:
        content = {"user_content": user_content, "groups": _groups(_plain(optimizer)) if optimizer is not None else None}
        _save_file(content, f"{partial}/content.pt")
        if model.plan is not None:
            model.plan.save(f"{partial}/plan.json")
    _together(lambda: _replace_folder(partial, path) if leader else None)
    _together(lambda: _replace_folder(partial, path) if first_of_host and os.path.isdir(partial) else None)


def load_checkpoint(path: str, model: PipelineModel, optimizer: Any = None, strict: bool = True) -> Any:
    """Reads a checkpoint of any number of stages; returns its `user_content`. Collective.

    Before the first step the whole model is loaded and the optimizer's state follows when the model is partitioned.

    Raises:
        PipelineError: there is no checkpoint, or (strict) a parameter is missing in it.
    """
    _together(lambda: _require(path))
    known = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    wanted = {name: p.detach() for name, p in model.engine.parameters.items()}
    wanted.update(model.local_buffers())
    missing = sorted(name for name in wanted if f"model.{name}" not in known)
    if missing and strict:
        raise PipelineError(f"{path}: has no {missing[0]}" + (f" (and {len(missing) - 1} more)" if missing[1:] else ""))
    state: State = {f"model.{name}": torch.empty_like(t) for name, t in wanted.items() if f"model.{name}" in known}
    _together(lambda: dcp.load(state, checkpoint_id=path, process_group=grid().control_group))
    with torch.no_grad():
        for name, tensor in wanted.items():
            if f"model.{name}" in state:
                tensor.copy_(state[f"model.{name}"])
    content = torch.load(f"{path}/content.pt", map_location="cpu", weights_only=False)
    if optimizer is not None and content["groups"] is not None:
        plain = _plain(optimizer)
        model.register_post_partition_hook(lambda *_: _load_optimizer_shards(path, model, plain, content["groups"]))
    _use_plan_of(path, model)
    return content["user_content"]


def _use_plan_of(path: str, model: PipelineModel) -> None:
    """A checkpoint's plan goes on where it fits and the job names no other."""
    file = f"{path}/plan.json"
    settings = grid().settings
    if model.partitioned or settings.partition_file or not os.path.exists(file):
        return
    plan = load_plan(file)
    stages = settings.pipeline_parallel_degree * settings.virtual_stages
    if plan.stages == stages and plan.model == model_fingerprint(model.module):
        model.use_plan(plan)


def _load_optimizer_shards(path: str, model: PipelineModel, optimizer: torch.optim.Optimizer, groups: Any) -> None:
    known = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state: State = {}
    for name in model.engine.parameters:
        prefix = f"optimizer.{name}."
        for key, entry in known.items():
            if isinstance(entry, TensorStorageMetadata) and key.startswith(prefix) and "." not in key[len(prefix) :]:
                parameter = model.engine.parameters[name].detach()
                same = entry.size == parameter.shape
                empty = torch.empty_like(parameter) if same else torch.empty(entry.size)
                state[key] = empty.to(dtype=entry.properties.dtype)
    _together(lambda: dcp.load(state, checkpoint_id=path, process_group=grid().control_group))
    entries: dict[str, State] = {}
    for key, tensor in state.items():
        name, _, part = key.removeprefix("optimizer.").rpartition(".")
        entries.setdefault(name, {})[part] = tensor
    _put_state(optimizer, entries, groups)


# The whole state in plain PyTorch's form -------------------------------------------------------------------------------


def gather_model(model: PipelineModel, everywhere: bool) -> State:
    """All parameters and buffers on the CPU with the module's own names, tied ones under each name."""
    place = grid()
    owners: dict[str, int] = model.buffer_owners()
    if model.engine.placement is not None:
        owners.update({name: ranks[0] for name, ranks in model.engine.placement.holders.items()})
    else:
        owners.update(dict.fromkeys(model.engine.parameters, 0))
    tensors = {**dict(model.module.named_parameters()), **dict(model.module.named_buffers())}
    keep = everywhere or place.place.pipeline == 0
    gathered: dict[str, torch.Tensor] = {}
    for name, owner in owners.items():
        tensor = whole(tensors[name].detach())
        tensor = tensor.contiguous() if owner == place.place.pipeline else torch.empty(tensor.shape, dtype=tensor.dtype)
        tensor = tensor.to(place.device)
        if len(place.pipeline_ranks) > 1:
            dist.broadcast(tensor, src=place.pipeline_ranks[owner], group=place.pipeline_group)
        if keep:
            gathered[name] = tensor.cpu().clone()
    names = {id(tensor): name for name, tensor in reversed(list(tensors.items()))}
    state = model.module.state_dict(keep_vars=True)
    return {key: gathered[names[id(value)]] for key, value in state.items() if names.get(id(value)) in gathered}


def load_model(model: PipelineModel, state: State, strict: bool) -> Any:
    """Copies what this rank holds out of a whole or partial state.

    Raises:
        PipelineError: (strict) names are missing or unknown.
    """
    state = {key.removeprefix("module."): value for key, value in state.items() if key != "_smp_is_partial"}
    if not model.partitioned:
        return model.module.load_state_dict(state, strict=strict)
    known = model.module.state_dict(keep_vars=True)
    held = {id(parameter) for parameter in model.local_parameters()} | {id(b) for b in model.module.buffers()}
    missing = [key for key, value in known.items() if id(value) in held and key not in state]
    unexpected = [key for key in state if key not in known]
    if strict and (missing or unexpected):
        raise PipelineError(f"the state does not fit the model: missing {missing[:3]}, unknown {unexpected[:3]}")
    with torch.no_grad():
        for key, value in known.items():
            if id(value) in held and key in state:
                value.copy_(like(state[key], value))
    return nn.modules.module._IncompatibleKeys(missing, unexpected)


def local_optimizer(optimizer: torch.optim.Optimizer) -> State:
    """State of this rank's parameters by name, with the groups by name."""
    return {"by_name": _by_name(optimizer), "groups": _groups(optimizer), "_smp_is_partial": True}


def gather_optimizer(optimizer: torch.optim.Optimizer) -> State:
    """The whole state as `torch.optim.Optimizer.state_dict` gives it, tensors on the CPU."""
    mine = _by_name(optimizer)
    mine = {
        name: {key: whole(value).cpu() if isinstance(value, torch.Tensor) else value for key, value in entry.items()}
        for name, entry in mine.items()
    }
    everyone = grid().settings.shard_optimizer_state
    parts: list[Any] = [None] * (grid().world if everyone else len(grid().pipeline_ranks))
    if len(parts) > 1:
        dist.all_gather_object(parts, mine, group=grid().control_group if everyone else grid().pipeline_group)
    else:
        parts = [mine]
    entries: dict[str, State] = {}
    for part in parts:
        entries.update(part)
    names = _names()
    order = [names.get(id(p)) for group in optimizer.param_groups for p in group["params"]]
    native = optimizer.state_dict()
    state = {index: entries[name] for index, name in enumerate(order) if name in entries}
    return {"state": state, "param_groups": native["param_groups"]}


def load_optimizer(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Takes `gather_optimizer`'s or `local_optimizer`'s form, now or when the model is partitioned."""
    model = session.model

    def put(*_: Any) -> None:
        if "by_name" in state:
            _put_state(optimizer, state["by_name"], state["groups"])
            return
        local = {id(p) for p in model.local_parameters()} if model is not None else None
        flat = [p for group in optimizer.param_groups for p in group["params"]]
        kept = {
            i: {key: like(value, flat[i]) for key, value in entry.items()}
            for i, entry in state["state"].items()
            if local is None or id(flat[i]) in local
        }
        optimizer.load_state_dict({"state": kept, "param_groups": state["param_groups"]})

    if model is None or model.partitioned:
        put()
    else:
        model.register_post_partition_hook(put)


# Pieces ----------------------------------------------------------------------------------------------------------------


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    return getattr(optimizer, "optimizer", optimizer)


def _names() -> dict[int, str]:
    if session.model is None:
        raise PipelineError("an optimizer's state is asked for before the model is wrapped")
    return {id(p): name for name, p in reversed(list(session.model.module.named_parameters()))}


def _by_name(optimizer: torch.optim.Optimizer) -> dict[str, State]:
    names = _names()
    return {names[id(p)]: dict(entry) for p, entry in optimizer.state.items() if id(p) in names}


def _groups(optimizer: torch.optim.Optimizer) -> list[State]:
    names = _names()
    return [{**group, "params": [names.get(id(p), "") for p in group["params"]]} for group in optimizer.param_groups]


def _put_state(optimizer: torch.optim.Optimizer, entries: dict[str, State], groups: list[State]) -> None:
    names = _names()
    if len(groups) != len(optimizer.param_groups):
        raise PipelineError(f"the optimizer has {len(optimizer.param_groups)} groups, the checkpoint {len(groups)}")
    flat = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {key: like(value, p) for key, value in entries[names[id(p)]].items()}
        for index, p in enumerate(flat)
        if names.get(id(p)) in entries
    }
    native = optimizer.state_dict()["param_groups"]
    merged = [{**saved, "params": own["params"]} for saved, own in zip(groups, native, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": merged})


def _owned_tensors(model: PipelineModel) -> dict[str, torch.Tensor]:
    parameters = model.engine.parameters
    tensors: dict[str, torch.Tensor] = {}
    if model.partitioned or grid().place.pipeline == 0:
        tensors = {name: parameters[name].detach() for name in model.owned_names()}
        tensors.update(model.local_buffers())
    return tensors


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous()
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _save_file(content: Any, path: str) -> None:
    with open(path, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def _require(path: str) -> None:
    if not os.path.exists(f"{path}/.metadata"):
        raise PipelineError(f"there is no checkpoint in {path}")


def _fresh_folder(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)


def _replace_folder(fresh: str, path: str) -> None:
    old = f"{path}.old"
    if os.path.exists(path):
        os.rename(path, old)
    os.rename(fresh, path)
    shutil.rmtree(old, ignore_errors=True)


def _together(action: Any) -> None:
    """Runs `action` on every rank and goes on only if it worked on all."""
    problem = ""
    try:
        action()
    except Exception as error:  # told to all ranks below
        problem = f"rank {grid().rank}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    found: list[Any] = [None] * grid().world
    dist.all_gather_object(found, problem, group=grid().control_group)
    if any(found):
        raise PipelineError(f"the checkpoint failed: {next(text for text in found if text)}")
