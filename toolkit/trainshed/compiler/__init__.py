"""The training compiler inside the user's process: compiles what the script trains, without a change to the script.

`find_batch_size` is for scripts; everything else is started by the hooks that `train` puts in place for a job that asks
for the compiler (`autopatch`, docs/compiler.md).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .batch_size import BatchSize, find_batch_size

__all__ = ["BatchSize", "find_batch_size"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from . import batch_size

        return getattr(batch_size, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
