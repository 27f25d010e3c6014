"""Exports a model's weights to one plain safetensors file, for any number of ranks that wrote the checkpoint."""

from __future__ import annotations

import os

import torch

from .blocks import sync_folder, write_durable
from .buffers import Buffer
from .folder import open_checkpoint, verify
from .load import Contents
from .shardfile import Layout, Piece, piece_of


def export_weights(checkpoint: str | os.PathLike[str], target: str | os.PathLike[str], model: str = "model") -> int:
    """Writes the model's tensors of a checkpoint to one safetensors file under the model's own names.

    Args:
        checkpoint: a checkpoint's folder (`.../step-000000001200`).
        target: the file; replaced by one rename if it exists.
        model: which model, where the checkpoint holds several (`model.0`, `model.encoder`).

    Returns:
        The file's size in bytes.

    Raises:
        Damaged: the checkpoint is not whole.
        ValueError: it holds no such model.
        OSError: the file cannot be written.
    """
    opened = open_checkpoint(os.path.abspath(checkpoint))
    verify(opened)
    contents = Contents(opened)
    prefix = f"{model}/"
    keys = [key for key in contents.stored if key.startswith(prefix)]
    if not keys:
        raise ValueError(f"{opened.path} holds no model named {model!r}")
    tensors = {key: torch.empty(shape, dtype=dtype) for key, (dtype, shape) in contents.stored.items() if key in set(keys)}
    contents.fill(tensors)
    named: dict[str, tuple[Piece, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        piece = piece_of(key[len(prefix) :], tensor)
        named[piece.key] = (piece, tensor)
    layout = Layout([piece for piece, _ in named.values()])
    buffer = Buffer(layout.memory)
    buffer.ready()
    buffer.view[: len(layout.header)] = layout.header
    for piece, view in zip(layout.pieces, layout.views(buffer.bytes_), strict=True):
        view.copy_(named[piece.key][1])
    path = os.path.abspath(target)
    aside = f"{path}.{os.getpid()}.tmp"
    try:
        write_durable(aside, buffer.view, layout.size)
        os.replace(aside, path)
    except BaseException:
        if os.path.exists(aside):
            os.unlink(aside)
        raise
    sync_folder(os.path.dirname(path))
    return layout.size
