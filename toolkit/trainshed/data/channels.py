"""The job's channels as the script finds them in its environment."""

from __future__ import annotations

import json
import os

from trainshed.base.errors import did_you_mean
from trainshed.base.record import Record
from trainshed.contract.hyperparameters import variable_names

from .formats.errors import DataError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_MARKERS = (".", "_SUCCESS", "_metadata", "_common_metadata", "_started_", "_committed_")


class ChannelFacts(Record):
    """The job's facts about a channel.

    path: its folder, or where its pipes are (`PATH_0`, `PATH_1`, ...). input_mode: File, FastFile or Pipe.
    sharded: whether each host has a part of its own. shuffled: whether each epoch's pipe has its files in another order.
    attributes: of an augmented manifest's samples; () for any other channel.
    """

    name: str
    path: str
    input_mode: str = "File"
    content_type: str = ""
    record_wrapper: str = "None"
    sharded: bool = False
    shuffled: bool = False
    attributes: tuple[str, ...] = ()


def facts_of(name: str, environ: Mapping[str, str]) -> ChannelFacts:
    """A channel by its name.

    Raises:
        DataError: there is none of that name.
    """
    config = _config(environ)
    names = sorted({*config, *_listed(environ)})
    variable = environ.get(variable_names("SM_CHANNEL_", name)[-1], "")
    if name not in names and not variable:
        what = f"the job's channels are {', '.join(names)}" if names else "the job has none"
        near = did_you_mean(name, names)
        raise DataError(f"there is no channel {name!r}" + (f": {near}" if near else ""), hint=what)
    fields = config.get(name, {})

    def text(key: str, default: str = "") -> str:
        value = fields.get(key)
        return value if isinstance(value, str) and value else default

    return ChannelFacts(
        name,
        variable or f"{environ.get('SM_INPUT_DIR') or '/opt/ml/input'}/data/{name}",
        text("TrainingInputMode", "File"),
        text("ContentType"),
        text("RecordWrapperType", "None"),
        text("S3DistributionType") == "ShardedByS3Key",
        isinstance(fields.get("ShuffleConfig"), dict),
        tuple(name for name in fields.get("AttributeNames") or () if isinstance(name, str)),
    )


def _config(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    try:
        value = json.loads(environ.get("SM_INPUT_DATA_CONFIG") or "{}")
    except ValueError:
        return {}
    return {name: fields for name, fields in value.items() if isinstance(fields, dict)} if isinstance(value, dict) else {}


def _listed(environ: Mapping[str, str]) -> list[str]:
    try:
        value = json.loads(environ.get("SM_CHANNELS") or "[]")
    except ValueError:
        return []
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def files_of(folder: str) -> tuple[str, ...]:
    """The files below a folder, sorted by path, but for hidden ones and what Hadoop and Spark put beside theirs.

    Raises:
        DataError: there is none, or a folder cannot be listed.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from error

    if os.path.isfile(folder):
        return (folder,)
    found = []
    for top, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(top, name) for name in names if not name.startswith(_MARKERS)]
    lost = [path for path in found if not os.path.exists(path)]
    if lost:
        raise DataError(f"{lost[0]} is a link to nothing", hint="a training would miss its samples without a word")
    files = tuple(sorted(path for path in found if os.path.isfile(path)))
    if not files:
        raise DataError(f"there is no data in {folder}", hint="see what `trainshed doctor` says of the channel")
    return files


def place_of_rank(environ: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) of this process: torch.distributed's where it has begun, else as the launcher says."""
    import sys

    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        rank, world = int(environ.get("RANK") or 0), int(environ.get("WORLD_SIZE") or 1)
    except ValueError:
        return 0, 1
    return (rank, world) if 0 <= rank < world else (0, 1)
