"""Fills any tensors from a verified checkpoint: plain ones directly, sharded ones by torch.distributed.checkpoint."""

from __future__ import annotations

import torch

from .write_plan import own_pieces, tensor_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .load import StoredTensors


def fill(contents: StoredTensors, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copies the stored values into the tensors; every rank by itself, for its own plain tensors and DTensors.

    Raises:
        ValueError: a tensor is not stored, stored with another shape, or not in full.
    """
    sharded = {key: tensor for key, tensor in tensors.items() if hasattr(tensor, "device_mesh")}
    contents.fill({key: tensor for key, tensor in tensors.items() if key not in sharded})
    if sharded:
        for key, tensor in sharded.items():
            contents.require(key, tuple(tensor.shape))
        from .dcp import fill_sharded  # its import takes a second

        fill_sharded(sharded, contents)


def fill_local(contents: StoredTensors, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copies the stored pieces into the same pieces of this rank's tensors: for the ranks that wrote them.

    Raises:
        ValueError: a piece is not stored.
    """
    with torch.no_grad():
        for piece in own_pieces(tensors):
            stored, data = contents.pieces.get(piece.key, {}).get(piece.offsets, (None, None))
            if piece.nbytes and (stored is None or stored.sizes != piece.sizes or stored.whole != piece.whole):
                raise ValueError(f"{piece.key} has the shape {piece.whole}, of which this rank's piece is not there")
            if piece.nbytes and data is not None:
                tensor_of(piece, tensors).copy_(data)
