"""Verified checkpoints of training loops: `from trainshed.checkpoint import Checkpointer`.

Importing this package does not import torch; using a name that needs torch does.

    checkpointer          the class for plain PyTorch; guard with hf_trainer and lightning: a library saves, we seal
    peer_copy             hosts give each other what one alone has, before the library loads
    agreement             ranks agree on notices after a step; interrupt sees them, policy decides when to save
    snapshots             copies the state: state captures it, write_plan divides it among ranks, shardfile lays the file out
    writer, save          the background thread and its work; blocks writes past the page cache
    folder, manifest      names, publishing, pruning; sizes and checksums; foreign_manifest: of what a library wrote
    storage_check         whether the folder takes checkpoints, what its disk has left, who else writes there
    resume, load          the newest whole checkpoint, verified; fill and dcp put it into tensors; export: weights alone
    memory_copies         copies in the hosts' memory, which outlive the ranks; memory_saves: a library's saves there
    in_place              calls a training function again in ranks that live on when another one is lost
    mirror                copies elsewhere: remote for a Checkpointer's, copies for a library's; storage: S3 or fsspec
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .checkpointer import Checkpointer
    from .errors import CheckpointError
    from .export import export_weights
    from .interrupt import listen
    from .readers import leave_stopping_to_the_rank
    from .resumable import ResumableLoader, ResumableSampler

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "ResumableLoader",
    "ResumableSampler",
    "export_weights",
    "leave_stopping_to_the_rank",
    "listen",
]
_HOMES = {
    "CheckpointError": "errors",
    "Checkpointer": "checkpointer",
    "ResumableLoader": "resumable",
    "ResumableSampler": "resumable",
    "export_weights": "export",
    "leave_stopping_to_the_rank": "readers",
    "listen": "interrupt",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
