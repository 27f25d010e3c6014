"""`smp.save`, `smp.load`, `smp.save_checkpoint`, `smp.resume_from_checkpoint`.

A partial checkpoint is one of trainshed's own, `PATH/TAG_partial`, which any number of stages reads. A full one is
`PATH/TAG`, a state that `torch.load` reads anywhere.

Scripts for Amazon's library keep objects of any class as user content (a model's configuration). Such content is pickled,
and unpickled when it is loaded, but never from a file that another user of the machine could have written. Resume from your
own checkpoints only.
"""

from __future__ import annotations

import io
import os
import pickle
from contextlib import suppress
from itertools import count, takewhile
from typing import Any

import torch

from trainshed.base.files import open_own, write_atomic
from trainshed.parallel import PipelineModel, load_checkpoint
from trainshed.parallel import save_checkpoint as save_shards
from trainshed.parallel.checkpoint import prune_checkpoints
from trainshed.parallel.ground.errors import PipelineError
from trainshed.parallel.session import grid, session

from .ranks import barrier

_PICKLED = "_smp_pickled"
_SAFETENSORS = {"pytorch_model.bin": "model.safetensors"}


def save(
    obj: Any, f: Any, partial: bool = True, pickle_module: Any = None, pickle_protocol: int = 2, v3: bool = False
) -> None:
    """`torch.save` to `f`, or with `partial` to `f_RANK` for this rank's part."""
    if partial and not v3:
        for left in _parts(f, start=grid().settings.pipeline_parallel_degree):
            with suppress(FileNotFoundError):  # another rank was faster
                os.remove(left)  # of a pipeline with more ranks, which the new parts replace
    torch.save(obj, _part(f, v3) if partial else f, pickle_protocol=pickle_protocol)


def load(
    f: Any, map_location: Any = None, pickle_module: Any = None, partial: bool = True, v3: bool = False, **options: Any
) -> Any:
    """Loads what `save` wrote. Files of a training job are the user's own: they may hold any object.

    States of parts (`local_state_dict`) may come from a pipeline with another number of ranks: each rank takes its share of
    the files, and `load_state_dict` gives every rank what it needs.

    Raises:
        PipelineError: something else was saved by another number of ranks.
    """
    options = {"map_location": map_location, **options}
    if not partial:
        return _loaded(f, **options)
    own, rank, degree = _part(f, v3), grid().place.pipeline, grid().settings.pipeline_parallel_degree
    more = _part(f, v3, degree)
    if os.path.exists(own) and not os.path.exists(more):
        return _loaded(own, **options)
    files = [] if v3 else _parts(f)
    if not files:
        raise PipelineError(f"there is no {own}", hint="the same number of ranks must load what they have saved")
    states = [_loaded(file, **options) for file in files[rank::degree] or files[:1]]
    if not all(isinstance(state, dict) and state.get("_smp_is_partial") for state in states):
        raise PipelineError(
            f"{f} was saved by {len(files)} ranks of a pipeline, which has {degree} now",
            hint="use save_checkpoint and resume_from_checkpoint, or save the states of model and optimizer by themselves",
        )
    return _merged(states) if files[rank::degree] else _emptied(states[0])


def _loaded(f: Any, **options: Any) -> Any:
    """What a file holds; objects of any class only where no other user could have written it (or the script says so).

    Raises:
        PipelineError: another user could have.
    """
    if "weights_only" in options or not isinstance(f, (str, os.PathLike)):
        return torch.load(f, **{"weights_only": True, **options})
    try:
        return torch.load(f, weights_only=True, **options)
    except pickle.UnpicklingError:
        pass
    try:
        with open_own(os.fspath(f)) as file:
            return torch.load(file, weights_only=False, **options)
    except PermissionError:
        raise _foreign(os.fspath(f)) from None


def _foreign(path: str) -> PipelineError:
    return PipelineError(
        f"{path} holds objects of classes, and another user of this machine could have written it",
        hint=f"where you trust it: make it a file of your own (cp), or chmod o-w {path}",
    )


def _part(f: Any, v3: bool, number: int | None = None) -> str:
    place = grid().place
    number = place.pipeline if number is None else number
    return f"{f}_{number}_{place.replica}" if v3 else f"{f}_{number}"


def _parts(f: Any, start: int = 0) -> list[str]:
    """Files of the ranks from `start` on."""
    return list(takewhile(os.path.exists, (f"{f}_{number}" for number in count(start))))


def _merged(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Parts of a model or of an optimizer as one."""
    merged = {key: value for state in states for key, value in state.items()}
    if "by_name" in merged:
        merged["by_name"] = {name: entry for state in states for name, entry in state["by_name"].items()}
    return merged


def _emptied(state: dict[str, Any]) -> dict[str, Any]:
    """A part without values, for a rank more than there were."""
    if "by_name" in state:
        return {**state, "by_name": {}}
    return {"_smp_is_partial": True}


def save_checkpoint(
    path: str,
    tag: str,
    partial: bool = True,
    model: Any = None,
    optimizer: Any = None,
    user_content: Any = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Writes a checkpoint, and its tag to `PATH/newest`. Collective."""
    model = model or session.model
    if model is None:
        raise PipelineError("save_checkpoint is called before the model is wrapped")
    leader = grid().rank == 0
    if leader:
        os.makedirs(path, exist_ok=True)
    barrier()
    if partial:
        save_shards(f"{path}/{tag}_partial", model, optimizer, _plain(user_content))
    else:
        state = model.state_dict(gather_to_rank0=True)
        if leader:
            _write(state, f"{path}/{tag}")
            if user_content is not None:
                _write(user_content, f"{path}/user_content_{tag}")
    if leader:
        write_atomic(f"{path}/newest", tag)
    if partial and num_kept_partial_checkpoints:
        prune_checkpoints(path, num_kept_partial_checkpoints, "*_partial")
    barrier()


def resume_from_checkpoint(
    path: str,
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Any = None,
) -> Any:
    """Loads a checkpoint into the wrapped model and optimizer; returns its `user_content`. Collective.

    Raises:
        PipelineError: there is none.
    """
    model = session.model
    if not isinstance(model, PipelineModel):
        raise PipelineError("resume_from_checkpoint is called before the model is wrapped")
    if tag is None:
        try:
            with open(f"{path}/newest", encoding="utf-8") as file:
                tag = file.read().strip()
        except OSError:
            raise PipelineError(f"there is no checkpoint in {path}: no file `newest`") from None
    if partial:
        optimizer = session.optimizer if load_optimizer else None
        folder = f"{path}/{tag}_partial"
        return _unpickled(load_checkpoint(folder, model, optimizer, strict), folder)
    full = f"{path}/{tag}"
    state = _full_state(full)
    model.load_state_dict(_with_tied(model, translate_function(state) if translate_function else state), strict=strict)
    content = f"{path}/user_content_{tag}"
    return _loaded(content, map_location="cpu") if os.path.exists(content) else None


def _full_state(path: str) -> dict[str, Any]:
    """A full checkpoint's tensors by name. transformers' Trainer asks for `pytorch_model.bin`, and writes safetensors.

    Raises:
        PipelineError: there is none.
    """
    if os.path.exists(path):
        return torch.load(path, map_location="cpu", weights_only=True)
    folder, name = os.path.split(path)
    safe = os.path.join(folder, _SAFETENSORS.get(name, ""))
    if name in _SAFETENSORS and os.path.exists(safe):
        from safetensors.torch import load_file

        return load_file(safe)
    raise PipelineError(f"there is no checkpoint {path}" + (f", nor {safe}" if name in _SAFETENSORS else ""))


def _with_tied(model: PipelineModel, state: dict[str, Any]) -> dict[str, Any]:
    """The state with every name of a parameter that has several: safetensors keeps one of them."""
    known = {name: id(value) for name, value in model.module.state_dict(keep_vars=True).items()}
    values = {known[name]: value for name, value in state.items() if name in known}
    return {**{name: values[of] for name, of in known.items() if of in values}, **state}


def _write(obj: Any, target: str) -> None:
    with open(f"{target}.partial", "wb") as file:
        torch.save(obj, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{target}.partial", target)


def _plain(content: Any) -> Any:
    """The content as a checkpoint can store it: itself, or pickled into a tensor if it holds objects of other classes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    buffer.seek(0)
    if not torch.serialization.get_unsafe_globals_in_checkpoint(buffer):
        return content
    return {_PICKLED: torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)}


def _unpickled(content: Any, folder: str) -> Any:
    """The reverse of `_plain`, for content from a checkpoint's folder.

    Raises:
        PipelineError: another user could have written a file there.
    """
    if not isinstance(content, dict) or content.keys() != {_PICKLED}:
        return content
    for file in os.scandir(folder):
        try:
            if file.is_file():
                open_own(file.path).close()
        except PermissionError:
            raise _foreign(file.path) from None
    return torch.load(io.BytesIO(content[_PICKLED].numpy().tobytes()), map_location="cpu", weights_only=False)
