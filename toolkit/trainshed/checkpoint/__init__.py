"""Verified checkpoints of training loops: `from trainshed.checkpoint import Checkpointer`.

Importing this package does not import torch; using a name that needs torch does.
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
