"""Reads checkpoints through torch.distributed.checkpoint: `dcp.load(state, storage_reader=Reader(path))`.

The names are those of the checkpoint: `model/<parameter>`, `optimizer/state/<parameter>/exp_avg`.
"""

from __future__ import annotations

import os

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from .folder import open_checkpoint
from .load import Contents, StoredTensors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Reader(dcp.StorageReader):
    """Reads one checkpoint folder."""

    def __init__(self, source: str | os.PathLike[str] | StoredTensors) -> None:
        self._contents: StoredTensors = (
            source if isinstance(source, StoredTensors) else Contents(open_checkpoint(os.fspath(source)))
        )

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing: no state is kept between loads."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Describes the stored pieces as torch.distributed.checkpoint's planner wants them."""
        described = {}
        storage = {}
        for key, pieces in self._contents.pieces.items():
            first = next(iter(pieces.values()))[0]
            described[key] = TensorStorageMetadata(
                properties=TensorProperties(dtype=first.torch_dtype),
                size=torch.Size(first.whole),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=torch.Size(piece.sizes))
                    for piece, _ in pieces.values()
                ],
            )
            for offsets in pieces:
                storage[MetadataIndex(key, torch.Size(offsets))] = key
        return Metadata(state_dict_metadata=dict(described), storage_data=storage)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing: there is nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies every planned overlap of a stored piece with a wanted shard."""
        for item in plan.items:
            index = item.storage_index
            _, data = self._contents.pieces[index.fqn][tuple(index.offset or (0,) * len(item.storage_offsets))]
            for axis, (at, size) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                data = data.narrow(axis, at, size)
            target = planner.resolve_tensor(item).detach()
            target.copy_(data)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether this path is a folder."""
        return os.path.isdir(checkpoint_id)


def fill_sharded(tensors: Mapping[str, torch.Tensor], contents: StoredTensors) -> None:
    """Fills DTensors in place. Not collective: each rank reads the files that it needs."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is meant to be
        dcp.load(dict(tensors), storage_reader=Reader(contents), no_dist=True)
