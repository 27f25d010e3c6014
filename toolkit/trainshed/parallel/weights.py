"""Weights as safetensors files, written and read stage by stage: no rank ever has the whole model.

The files are those of `trainshed.checkpoint.weights`: transformers' `from_pretrained` reads them, and so does everything
else that knows safetensors.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainshed.checkpoint import weights as files
from trainshed.checkpoint.fill import fill
from trainshed.checkpoint.manifest import Damaged
from trainshed.checkpoint.shardfile import Layout, Piece, piece_of

from .collective_errors import together
from .engine.checking import meet_with_replicas
from .engine.holding import Holding
from .engine.object_collectives import LOAD_WEIGHTS, SAVE_WEIGHTS
from .ground.errors import PipelineError
from .ground.grid import Grid
from .ground.halves import is_half
from .ground.shards import whole


@dataclass(frozen=True)
class _Shard:
    """One file: who writes it, what is in it."""

    writer: int
    layout: Layout


def save_weights(holding: Holding, folder: str | os.PathLike[str], shard_bytes: int) -> None:
    """Writes parameters and saved buffers under the names of the user's module; replaces an earlier model. Collective.

    Hosts that do not share the folder each write the files of their ranks, the first one the index; together they are the
    model.

    Args:
        folder: made if it is not there.
        shard_bytes: the most bytes of tensors in a file; one larger tensor has a file of its own.

    Raises:
        PipelineError: on all ranks, if one of them could not write its files. An earlier model stays then.
    """
    here, path = holding.grid, os.path.abspath(folder)
    if shard_bytes < 1:
        raise PipelineError(f"shard_bytes is {shard_bytes}, and must be at least 1")
    if not here.left:
        meet_with_replicas(here, SAVE_WEIGHTS)
    if holding.waiting is not None and holding.waiting.names and not holding.partitioned:
        raise PipelineError("the model has no values before its first step", hint="train or load first, then save")
    held = holding.owned_tensors() if here.writes else {}
    shards = _shared_out(_everyones({name: piece_of(name, tensor) for name, tensor in held.items()}, here), shard_bytes)
    if not shards:
        raise PipelineError("the model has no parameters to save")
    named = dict(zip(files.file_names(len(shards)), shards, strict=True))
    mine = {name: shard for name, shard in named.items() if shard.writer == here.rank}
    failed = f"the weights were not saved to {path}"
    leads = here.local_rank == 0
    together(
        here, failed, lambda: files.make_room(path, sum(shard.layout.size for shard in mine.values())) if leads else None
    )
    try:
        together(here, failed, lambda: _write(path, named, held, here.rank))
        together(here, failed, lambda: files.make_way(path, named) if leads else None)
        together(here, failed, lambda: files.publish(path, mine))
    finally:
        files.remove(f"{path}/{name}{files.NEW}" for name in mine)
    index = {name: shard.layout.pieces for name, shard in named.items()}
    together(here, failed, lambda: files.finish(path, index) if here.rank == 0 else None)


def _everyones(mine: Mapping[str, Piece], here: Grid) -> dict[str, tuple[Piece, tuple[int, ...]]]:
    """Name -> tensor, ranks that have it. Collective."""
    everyone: list[Any] = [list(mine.values())]
    if here.world > 1:
        everyone = [None] * here.world
        dist.all_gather_object(everyone, list(mine.values()), group=here.control_group)
    found: dict[str, tuple[Piece, tuple[int, ...]]] = {}
    for rank, pieces in enumerate(everyone):
        for piece in pieces:
            found[piece.key] = (piece, (*found.get(piece.key, (piece, ()))[1], rank))
    return found


def _shared_out(pieces: Mapping[str, tuple[Piece, tuple[int, ...]]], shard_bytes: int) -> list[_Shard]:
    """Who writes what; what several ranks have together is shared out among them."""
    together_on: dict[tuple[int, ...], list[Piece]] = {}
    for piece, ranks in pieces.values():
        together_on.setdefault(ranks, []).append(piece)
    return [
        _Shard(ranks[number % len(ranks)], Layout(shard))
        for ranks, theirs in sorted(together_on.items())
        for number, shard in enumerate(files.into_shards(theirs, shard_bytes))
    ]


def _write(folder: str, shards: Mapping[str, _Shard], held: Mapping[str, torch.Tensor], rank: int) -> None:
    """Writes this rank's files. Collective over the ranks that hold a tensor together."""
    problem: OSError | None = None
    for name, shard in shards.items():
        left = [piece.key for piece in shard.layout.pieces if piece.key in held]

        def value(key: str, left: list[str] = left) -> torch.Tensor:
            left.remove(key)
            return whole(held[key])

        if shard.writer == rank and problem is None:
            try:
                files.write_shard(f"{folder}/{name}{files.NEW}", shard.layout, value)
            except OSError as error:  # the other ranks still wait for this one's parts
                problem = error
        for key in left:
            whole(held[key])
    if problem is not None:
        raise problem


def load_weights(holding: Holding, path: str | os.PathLike[str], strict: bool) -> None:
    """Reads what this rank holds, or will hold, out of safetensors files. Collective.

    Args:
        path: a file, or a folder with `model.safetensors` or with several files and their index.
        strict: whether the files must have all parameters and saved buffers, and nothing else.

    Raises:
        PipelineError: on all ranks; the files are not there or damaged, or do not fit the model.
    """
    here, where = holding.grid, os.path.abspath(path)
    if not here.left:
        meet_with_replicas(here, LOAD_WEIGHTS)
    together(here, f"the weights of {where} cannot be loaded", lambda: _load(holding, where, strict))


def _load(holding: Holding, path: str, strict: bool) -> None:
    try:
        found = files.Weights(path)
    except Damaged as error:
        raise PipelineError(str(error)) from error
    stored = found.stored
    keys = _keys(holding, set(stored))
    waiting = holding.waiting.names if holding.waiting is not None else frozenset()
    wanted = holding.tensors()
    missing = sorted(name for name in {*wanted, *waiting} if name not in keys)
    unknown = sorted(stored.keys() - _names(holding).keys())
    if strict and (missing or unknown):
        what = f"{missing[0]} of the model is missing" if missing else f"the model has no {unknown[0]}"
        others = len(missing or unknown) - 1
        raise PipelineError(
            what + (f" (and {others} more)" if others else ""),
            hint="files of the Hugging Face hub may have other names than the model: transformers' from_pretrained converts "
            "them, before PipelineModel. strict=False loads what fits",
        )
    fill(found, {keys[name]: tensor for name, tensor in wanted.items() if name in keys})
    if any(map(is_half, holding.parameters.values())):
        holding.when_partitioned(lambda: _load_exact(holding, found, keys))
    later = waiting & keys.keys()
    if later and holding.waiting is not None:
        for name in later:
            found.require(keys[name], tuple(dict(holding.root.named_parameters())[name].shape))
        holding.waiting.come_from_elsewhere(later)
        holding.when_partitioned(
            lambda: fill(found, {keys[name]: one for name, one in holding.tensors().items() if name in later})
        )


def _load_exact(holding: Holding, found: files.Weights, keys: Mapping[str, str]) -> None:
    """Notes values of float32 for the parameters of this rank in half precision."""
    halves = {name: p for name, p in holding.parameters.items() if is_half(p) and name in keys}
    exact = [name for name in halves if found.stored[keys[name]][0] in (torch.float32, torch.float64)]
    tensors = {name: torch.empty_like(halves[name].detach(), dtype=torch.float32) for name in exact}
    fill(found, {keys[name]: tensor for name, tensor in tensors.items()})
    holding.exact.update(tensors)


def _names(holding: Holding) -> dict[str, str]:
    """Each name of a parameter or saved buffer -> the one that stands for it."""
    root = holding.root
    first = {id(tensor): name for name, tensor in [*root.named_parameters(), *root.named_buffers()]}
    return {name: first[id(tensor)] for name, tensor in root.state_dict(keep_vars=True).items() if id(tensor) in first}


def _keys(holding: Holding, stored: set[str]) -> dict[str, str]:
    """Name of a tensor -> its name in the files, where a tied one may have another of its names."""
    keys: dict[str, str] = {}
    for name, first in _names(holding).items():
        if name in stored and (name == first or first not in stored):
            keys.setdefault(first, name)
    return keys


def save_pretrained(holding: Holding, folder: str | os.PathLike[str], shard_bytes: int) -> None:
    """Writes weights and configuration as transformers' `from_pretrained` reads them. Collective.

    Raises:
        PipelineError: on all ranks; the model is not transformers', or something could not be written.
    """
    module: Any = holding.root
    config: Any = getattr(module, "config", None)
    if not hasattr(module, "save_pretrained") or not hasattr(config, "save_pretrained") or hasattr(module, "peft_config"):
        raise PipelineError(
            f"{type(module).__name__} is not one of transformers' models",
            hint="model.save_weights(folder) writes the weights; for an adapter of PEFT call state = model.state_dict() on "
            "all ranks, then model.module.save_pretrained(folder, state_dict=state) on one",
        )
    save_weights(holding, folder, shard_bytes)
    here, path = holding.grid, os.path.abspath(folder)

    def describe() -> None:
        described = copy.deepcopy(config)
        described.architectures = [type(module).__name__]
        described.dtype = next(module.parameters()).dtype
        described.save_pretrained(path)
        if getattr(module, "generation_config", None) is not None:
            module.generation_config.save_pretrained(path)

    together(here, f"the configuration was not saved to {path}", lambda: describe() if here.rank == 0 else None)
