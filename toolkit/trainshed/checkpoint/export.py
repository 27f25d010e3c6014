"""Exports a model's weights to plain safetensors files, for any number of ranks that wrote the checkpoint."""

from __future__ import annotations

import os

import torch

from .blocks import sync_folder
from .folder import open_checkpoint, verify
from .load import Contents
from .shardfile import Layout, Piece
from .weights import NEW, SHARD_BYTES, file_names, finish, into_shards, make_room, make_way, publish, remove, write_shard


def export_weights(
    checkpoint: str | os.PathLike[str],
    target: str | os.PathLike[str],
    model: str = "model",
    *,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Writes the model's tensors of a checkpoint to safetensors files under the model's own names.

    In memory is one tensor at a time.

    Args:
        checkpoint: a checkpoint's folder (`.../step-000000001200`).
        target: a file, which is replaced by one rename if it exists; or, where it is a folder or ends in `/`, a folder for
            `model.safetensors`, or for several files with an index, as transformers' `from_pretrained` reads them.
        model: which model, where the checkpoint holds several (`model.0`, `model.encoder`).
        shard_bytes: the most bytes of tensors in one of several files.

    Returns:
        The size of all files in bytes.

    Raises:
        Damaged: the checkpoint is not whole.
        ValueError: it holds no such model, or a tensor of it not in full.
        OSError: a file cannot be written; what was there before is there still.
    """
    opened = open_checkpoint(os.path.abspath(checkpoint))
    verify(opened)
    contents = Contents(opened)
    prefix = f"{model}/"
    stored = {key[len(prefix) :]: facts for key, facts in contents.stored.items() if key.startswith(prefix)}
    if not stored:
        raise ValueError(f"{opened.path} holds no model named {model!r}")
    pieces = [_whole(name, dtype, shape) for name, (dtype, shape) in stored.items()]

    def values(name: str) -> torch.Tensor:
        dtype, shape = stored[name]
        tensor = torch.empty(shape, dtype=dtype)
        contents.fill({prefix + name: tensor})
        return tensor

    path = os.path.abspath(target)
    if not (os.path.isdir(path) or os.fspath(target).endswith("/")):
        layout = Layout(pieces)
        aside = f"{path}.{os.getpid()}{NEW}"
        write_shard(aside, layout, values)
        os.replace(aside, path)
        sync_folder(os.path.dirname(path))
        return layout.size
    layouts = [Layout(shard) for shard in into_shards(pieces, shard_bytes)]
    files = file_names(len(layouts))
    make_room(path, sum(layout.size for layout in layouts))
    try:
        for name, layout in zip(files, layouts, strict=True):
            write_shard(f"{path}/{name}{NEW}", layout, values)
    except BaseException:
        remove(f"{path}/{name}{NEW}" for name in files)
        raise
    make_way(path, files)
    publish(path, files)
    finish(path, {name: layout.pieces for name, layout in zip(files, layouts, strict=True)})
    return sum(layout.size for layout in layouts)


def _whole(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Piece:
    return Piece(key=name, dtype=str(dtype)[6:], offsets=(0,) * len(shape), sizes=shape, whole=shape)
