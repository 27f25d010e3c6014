"""Checkpoints by parameter name: what any number of stages writes, any other number reads.

They are checkpoints of `trainshed.checkpoint`: durable, with checksums, and published by one rename. In them are

* tensors `model/NAME` and `optimizer/state/NAME/KEY`, each written by one rank that holds it;
* `optimizer/state/NAME/master`, the float32 value of a parameter in half precision: who loads NAME takes that;
* objects of every rank: values of the optimizer's state that are not tensors;
* objects of rank 0: the optimizer's groups, its loss scale, the plan as JSON, and what the user gave.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import torch

from trainshed.checkpoint import tensor_folder as parts
from trainshed.checkpoint.errors import CheckpointError

from .collective_errors import together
from .engine.checking import meet_with_replicas
from .engine.holding import Holding
from .engine.object_collectives import LOAD, PRUNE, SAVE
from .gather import State, groups_by_name, plain, put_state, state_by_name
from .ground.errors import PipelineError
from .ground.grid import Grid
from .ground.halves import is_half
from .masters import MASTER, home_of_state
from .model import PipelineModel
from .plan.plan_file import model_fingerprint, plan_from
from .session import grid

_MODEL = "model/"
_STATE = "optimizer/state/"


def save_checkpoint(
    path: str, model: PipelineModel, optimizer: Any = None, user_content: Any = None, *, copy_to: str = ""
) -> None:
    """Writes model, optimizer and `user_content` to the checkpoint `path`. Collective; returns when it is durable.

    Hosts that do not share the folder each write their ranks' files to their own; together (as a platform that
    uploads all of them to one place has them) they are the checkpoint.

    Args:
        path: a folder, which appears under this name when it is whole; replaces a checkpoint of the same name.
        user_content: rank 0's counts. Plain values (numbers, strings, lists, tuples, dictionaries) and tensors.
        copy_to: URL of a storage (`s3://bucket/run`) that gets a copy of the same name.

    Raises:
        PipelineError: on all ranks, if one of them could not write its part; says which and why. An older
            checkpoint at `path` stays then.
    """
    holding = model.holding
    here = holding.grid
    if not here.left:  # after a step that failed every rank may still have its part
        meet_with_replicas(here, SAVE)
    tensors: dict[str, torch.Tensor] = {}
    objects: State = {"state": {}}
    if here.writes:
        tensors = {_MODEL + name: tensor.detach().contiguous() for name, tensor in holding.owned_tensors().items()}
    if optimizer is not None and (here.writes or here.settings.shard_optimizer_state):
        tensors |= _state_tensors(plain(optimizer), holding, objects["state"])
    if here.rank == 0:
        objects["groups"] = groups_by_name(plain(optimizer), holding) if optimizer is not None else None
        objects["scaler"] = getattr(optimizer, "scale_state", dict)()
        objects["plan"] = model.plan.to_json() if model.plan is not None else None
        objects["user_content"] = user_content
    try:
        parts.save(path, tensors, objects, copy_to=copy_to, group=here.control_group)
    except CheckpointError as error:
        raise PipelineError(f"the checkpoint was not saved: {error}") from error


def _state_tensors(optimizer: torch.optim.Optimizer, holding: Holding, others: State) -> dict[str, torch.Tensor]:
    """The tensors of the optimizer's state that this rank saves; values that are not tensors go to `others`."""
    owned = set(holding.owned_names())
    tensors = {}
    for name, entry in state_by_name(optimizer, holding).items():
        if name not in owned:
            continue
        for key, value in entry.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{_STATE}{name}/{key}"] = value.detach().contiguous()
            else:
                others.setdefault(name, {})[key] = value
    return tensors


def load_checkpoint(
    path: str, model: PipelineModel, optimizer: Any = None, strict: bool = True, *, copy_to: str = ""
) -> Any:
    """Reads a checkpoint that any number of stages has written; returns its `user_content`. Collective.

    Before the first step the whole model is loaded; the optimizer's state follows when the model is partitioned.

    Args:
        path: the folder given to `save_checkpoint`; every byte of it is verified.
        strict: whether every parameter and buffer must be in the checkpoint.
        copy_to: URL of the storage with copies; a host that has no whole checkpoint at `path` fetches it from there.

    Raises:
        PipelineError: on all ranks; there is no whole checkpoint, or it does not fit the model.
    """
    holding = model.holding
    here = holding.grid
    if not here.left:
        meet_with_replicas(here, LOAD)
    saved = _open(path, here, copy_to)
    together(here, _failed(path), lambda: _load_model(saved, holding, strict))
    objects = saved.objects[0]
    if optimizer is not None and objects["groups"] is not None:
        native = plain(optimizer)
        holding.when_partitioned(lambda: _load_optimizer(saved, holding, native))
        if hasattr(optimizer, "load_scale"):
            optimizer.load_scale(objects.get("scaler"))
    _use_plan(objects["plan"], path, model)
    return objects["user_content"]


def prune_checkpoints(folder: str, keep: int, names: str = "*", *, copy_to: str = "") -> list[str]:
    """Deletes all but the newest checkpoints of a folder, never in part; returns the deleted names. Collective.

    Args:
        keep: how many whole ones stay, at least 1.
        names: pattern (`epoch-*`) of the names that count; all others are left alone.
        copy_to: URL of the storage with copies; the copies of what is deleted are deleted too.

    Raises:
        ValueError: `keep` is less than 1.
        PipelineError: the folder cannot be read or written.
    """
    here = grid()
    if not here.left:
        meet_with_replicas(here, PRUNE)
    group = here.control_group
    try:
        return parts.prune(folder, keep=keep, belongs=lambda name: fnmatch(name, names), copy_to=copy_to, group=group)
    except CheckpointError as error:
        raise PipelineError(str(error)) from error


def _open(path: str, here: Grid, copy_to: str) -> parts.Saved:
    together(here, _failed(path), lambda: _refuse_old(path))
    try:
        saved = parts.load(path, copy_to=copy_to, group=here.control_group)
    except CheckpointError as error:
        raise PipelineError(f"the checkpoint cannot be loaded: {error}") from error
    if not isinstance(saved.objects.get(0), dict) or "user_content" not in saved.objects[0]:
        raise PipelineError(f"{path} was not written by save_checkpoint")
    return saved


def _failed(path: str) -> str:
    return f"the checkpoint {path} cannot be loaded"


def _refuse_old(path: str) -> None:
    if os.path.exists(f"{path}/content.pt"):
        raise PipelineError(
            "it was written by trainshed 0.1 in another format",
            hint="load it with trainshed 0.1, save model.state_dict() and optimizer.state_dict() with torch.save, "
            "and give both to load_state_dict here",
        )


def _load_model(saved: parts.Saved, holding: Holding, strict: bool) -> None:
    stored = saved.stored
    wanted = holding.tensors()
    waiting = set(holding.waiting.names if holding.waiting is not None else ())
    missing = sorted(name for name in wanted.keys() | waiting if _MODEL + name not in stored)
    if missing and strict:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise PipelineError(f"{missing[0]}{more} of the model are missing" if more else f"{missing[0]} is missing")
    saved.fill({_key(stored, name): tensor for name, tensor in wanted.items() if _MODEL + name in stored})
    later = {name for name in waiting if _MODEL + name in stored}
    if later and holding.waiting is not None:
        holding.waiting.come_from_elsewhere(later)
        holding.when_partitioned(lambda: _load_later(saved, holding, later))
    if any(map(is_half, holding.parameters.values())):
        holding.when_partitioned(lambda: _load_exact(saved, holding))


def _key(stored: Mapping[str, Any], name: str) -> str:
    """Under which name the most exact value of a parameter or buffer is stored."""
    master = f"{_STATE}{name}/{MASTER}"
    return master if master in stored else _MODEL + name


def _load_exact(saved: parts.Saved, holding: Holding) -> None:
    """Loads what an optimizer goes on with, where that is more than the parameters of this rank can hold."""
    keys = {name: _key(saved.stored, name) for name, one in holding.parameters.items() if is_half(one)}
    exact = {name: key for name, key in keys.items() if saved.stored.get(key, (None,))[0] in (torch.float32, torch.float64)}
    found = {name: torch.empty_like(holding.parameters[name].detach(), dtype=torch.float32) for name in exact}
    saved.fill({exact[name]: tensor for name, tensor in found.items()})
    holding.exact.update(found)


def _load_later(saved: parts.Saved, holding: Holding, names: set[str]) -> None:
    """Loads the parameters that this rank holds, of those that had no values when the checkpoint was read."""
    saved.fill({_key(saved.stored, name): one for name, one in holding.tensors().items() if name in names})


def _load_optimizer(saved: parts.Saved, holding: Holding, optimizer: torch.optim.Optimizer) -> None:
    """Loads the state of the parameters that this rank holds."""
    parameters = holding.parameters
    tensors: dict[str, torch.Tensor] = {}
    entries: dict[str, State] = {}
    for key, (dtype, shape) in saved.stored.items():
        name, _, entry = key.removeprefix(_STATE).rpartition("/")
        if key.startswith(_STATE) and name in parameters:
            parameter = parameters[name].detach()
            same = shape == tuple(parameter.shape) and entry != "step"
            home = home_of_state(parameter, holding)
            whole = torch.empty_like(parameter, dtype=dtype, device=home) if same else torch.empty(shape, dtype=dtype)
            tensors[key] = whole
            entries.setdefault(name, {})[entry] = tensors[key]
    saved.fill(tensors)
    for objects in saved.objects.values():
        for name, values in objects["state"].items():
            if name in parameters:
                entries.setdefault(name, {}).update(values)
    put_state(optimizer, entries, saved.objects[0]["groups"], holding)


def _use_plan(text: str | None, path: str, model: PipelineModel) -> None:
    """The checkpoint's plan is used where it fits and the job names no other."""
    settings = grid().settings
    if text is None or model.partitioned or settings.partition_file:
        return
    plan = plan_from(json.loads(text), path)
    serves = plan.serves(settings.pipeline_parallel_degree, settings.virtual_stages)
    if serves and plan.model == model_fingerprint(model.module):
        model.use_plan(plan)
