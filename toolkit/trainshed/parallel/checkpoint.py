"""Checkpoints by parameter name: what any number of stages writes, any other number reads.

FOLDER/               one checkpoint; it appears under this name when it is whole
  .metadata, *.distcp torch.distributed.checkpoint: `model.NAME`, `optimizer.NAME.KEY`
  content.pt          the optimizer's groups and what the user gave (torch.load reads it with weights_only=True)
  plan.json           the plan that was in use
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from .errors import PipelineError
from .gather import State, groups_by_name, plain, put_state, state_by_name
from .model import PipelineModel
from .plan.plan_file import load_plan, model_fingerprint
from .session import grid


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
        state = {f"model.{name}": tensor.detach().contiguous() for name, tensor in model.holding.owned_tensors().items()}
    if optimizer is not None and (first or grid().settings.shard_optimizer_state):
        owned = set(model.holding.owned_names())
        for name, entry in state_by_name(plain(optimizer), model.holding).items():
            if name in owned:
                state.update({f"optimizer.{name}.{key}": _as_tensor(value) for key, value in entry.items()})
    _together(lambda: dcp.save(state, checkpoint_id=partial, process_group=grid().control_group))
    if leader:
        content = {
            "user_content": user_content,
            "groups": groups_by_name(plain(optimizer), model.holding) if optimizer is not None else None,
        }
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
    wanted = model.holding.tensors()
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
        native = plain(optimizer)
        model.holding.when_partitioned(lambda: _load_optimizer_shards(path, model, native, content["groups"]))
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
    for name in model.holding.parameters:
        prefix = f"optimizer.{name}."
        for key, entry in known.items():
            if isinstance(entry, TensorStorageMetadata) and key.startswith(prefix) and "." not in key[len(prefix) :]:
                parameter = model.holding.parameters[name].detach()
                same = entry.size == parameter.shape
                empty = torch.empty_like(parameter) if same else torch.empty(entry.size)
                state[key] = empty.to(dtype=entry.properties.dtype)
    _together(lambda: dcp.load(state, checkpoint_id=path, process_group=grid().control_group))
    entries: dict[str, State] = {}
    for key, tensor in state.items():
        name, _, part = key.removeprefix("optimizer.").rpartition(".")
        entries.setdefault(name, {})[part] = tensor
    put_state(optimizer, entries, groups, model.holding)


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
