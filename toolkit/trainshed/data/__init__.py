"""The job's channels as datasets.

    from trainshed.data import channel

    train = channel("train")                                    # what it is tells how it is read
    batches = train.loader(batch_size=32, shuffle=True, workers=2)
    for epoch in range(3):
        for batch in batches: ...

Importing this package imports neither torch nor numpy.

    api          what scripts call; channels: what the job says; previous: the model to go on from
    dataset      the files of a channel, with reader and index (counts, kept on the machine in user_cache)
    loader       its batches, of what sharding and order (pure) give a rank
    pipe_stream  Pipe mode, one reader a host (pipe_sharing)
    formats/     a module a format: counts a file's records, reads them, makes samples; table finds the format
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .api import channel, folder
    from .formats.errors import DataError
    from .previous import has_previous_model, previous_model

__all__ = ["DataError", "channel", "folder", "has_previous_model", "previous_model"]
_HOMES = {"DataError": "errors", "has_previous_model": "previous", "previous_model": "previous"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f".{_HOMES.get(name, 'api')}", __name__)
    return getattr(module, name)
