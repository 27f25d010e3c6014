"""A model's weights as safetensors files that other libraries read: one file, or several with an index beside them.

Formats: https://huggingface.co/docs/safetensors; the index as transformers' `from_pretrained` reads it, that is
`{"metadata": {"total_size": BYTES}, "weight_map": {NAME: FILE}}` in `model.safetensors.index.json`.
"""

from __future__ import annotations

import json
import os
import re
import shutil

import torch

from trainshed.base.files import write_atomic

from .blocks import sync_folder
from .load import StoredTensors
from .manifest import Damaged
from .shardfile import Layout, Piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
NEW = ".new"


def file_names(count: int) -> list[str]:
    """The names of a model's files."""
    return [SINGLE] if count == 1 else [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def into_shards(pieces: Iterable[Piece], shard_bytes: int) -> list[list[Piece]]:
    """Splits tensors up, in their order; a shard is larger than `shard_bytes` only where it is one tensor."""
    shards: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not shards or piece.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(piece)
        room -= piece.nbytes
    return shards


def write_shard(path: str, layout: Layout, values: Callable[[str], torch.Tensor]) -> None:
    """Writes one file, tensor by tensor; it is durable when this returns.

    Args:
        values: name of a tensor -> its values; asked once each, in the order of `layout`.

    Raises:
        OSError: the file cannot be written; nothing is left of it.
    """
    try:
        with open(path, "wb") as file:
            file.write(layout.header)
            for piece in layout.pieces:
                tensor = values(piece.key).detach().cpu().contiguous().reshape(-1)
                if tensor.numel():
                    file.write(tensor.view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        remove([path])
        raise


def index_text(shards: Mapping[str, Iterable[Piece]]) -> str:
    """The index of files that hold these tensors."""
    total = sum(piece.nbytes for pieces in shards.values() for piece in pieces)
    places = {piece.key: file for file, pieces in shards.items() for piece in pieces}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}, indent=2) + "\n"


def make_way(folder: str, files: Iterable[str]) -> None:
    """Before several files get their names: takes the earlier model away, its index first, so that nothing ever reads files
    of two models as one. A single file replaces what it follows by one rename."""
    if list(files) != [SINGLE]:
        _clear(folder, ())


def publish(folder: str, files: Iterable[str]) -> None:
    """Gives files their names, which end in `NEW` so far."""
    for name in files:
        os.replace(f"{folder}/{name}{NEW}", f"{folder}/{name}")
    sync_folder(folder)


def finish(folder: str, shards: Mapping[str, Iterable[Piece]]) -> None:
    """From here on the model is there, and no other."""
    if list(shards) == [SINGLE]:
        _clear(folder, {SINGLE})
    else:
        write_atomic(f"{folder}/{INDEX}", index_text(shards))
    sync_folder(folder)


def _clear(folder: str, keep: Collection[str]) -> None:
    found = [INDEX, SINGLE, *filter(_SHARD.fullmatch, os.listdir(folder))]
    for names in (found[:2], found[2:]):
        remove(f"{folder}/{name}" for name in names if name not in keep)
        sync_folder(folder)


def make_room(folder: str, size: int) -> None:
    """Makes the folder, and clears what a killed run has left in it.

    Raises:
        OSError: it cannot be made, or has less room than `size` bytes.
    """
    os.makedirs(folder, exist_ok=True)
    remove(f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(NEW) and _of_ours(name[: -len(NEW)]))
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(f"{folder} has room for {free / 1e9:.1f} GB, the weights need {size / 1e9:.1f} GB")


def remove(paths: Iterable[str]) -> None:
    """Removes files, those that are there."""
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


def _of_ours(name: str) -> bool:
    return name in (SINGLE, INDEX) or _SHARD.fullmatch(name) is not None


class Weights(StoredTensors):
    """The tensors in a model's files; these are mapped, and read when they are used.

    Args:
        path: one safetensors file, or a folder with `model.safetensors` or an index and its files.

    Raises:
        Damaged: a file is missing, or is not a safetensors file, or has not what the index says.
    """

    def __init__(self, path: str) -> None:
        files, promised = _files_of(path)
        super().__init__(files)
        lacking = sorted(promised - self.pieces.keys())
        if lacking:
            raise Damaged(f"{path} has no {lacking[0]}, which its index names")


def _files_of(path: str) -> tuple[list[str], set[str]]:
    """The files, and the tensors that they must have."""
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise Damaged(f"there is no file or folder {path}")
        return [path], set()
    if os.path.exists(f"{path}/{SINGLE}"):
        return [f"{path}/{SINGLE}"], set()
    index = f"{path}/{INDEX}"
    if not os.path.exists(index):
        raise Damaged(f"{path} has neither {SINGLE} nor {INDEX}")
    try:
        with open(index) as file:
            places = {str(name): str(place) for name, place in json.load(file)["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{index} is not an index of safetensors files") from error
    files = sorted(set(places.values()))
    for name in files:
        if os.path.basename(name) != name or not os.path.exists(f"{path}/{name}"):
            raise Damaged(f"{path} has no file {name}, which its index names")
    return [f"{path}/{name}" for name in files], set(places)
