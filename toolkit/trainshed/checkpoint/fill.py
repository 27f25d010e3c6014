"""Fills any tensors from a verified checkpoint: plain ones directly, sharded ones by torch.distributed.checkpoint."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from .load import Stored


def fill(contents: Stored, tensors: Mapping[str, torch.Tensor]) -> None:
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
