"""Augmented manifests: JSON Lines whose attributes go through the FIFOs of Pipe mode, one record each.

Of an attribute whose name ends with `-ref` the object that it names is sent; of any other its value: texts as they are,
all else as JSON. Source: Amazon SageMaker's developer guide, "Provide Dataset Metadata to Training Jobs with an Augmented
Manifest File".
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from trainshed.base.errors import TrainshedError

from ..job.job import S3, ChannelSpec

if TYPE_CHECKING:
    from .fetching.s3 import Bucket

REF = "-ref"
_AT_ONCE = 8  # objects that are fetched
_AHEAD = 32  # attributes that wait for their turn


def lines_of(text: bytes) -> list[bytes]:
    """The manifest's lines, without empty ones."""
    return [line for line in text.split(b"\n") if line.strip()]


def records(path: str, channel: ChannelSpec, epoch: int, environ: Mapping[str, str]) -> Iterator[bytes]:
    """The attributes of all lines, in their order; of each line those that the channel names.

    Args:
        path: of the manifest. epoch: from 0; each has another order where the channel has a seed.

    Raises:
        TrainshedError: a line is damaged, lacks an attribute, or names what cannot be fetched.
        OSError: a file cannot be read.
    """
    with open(path, "rb") as file:
        numbered = list(enumerate(lines_of(file.read()), 1))
    if channel.shuffle_seed is not None:
        random.Random(f"{channel.shuffle_seed}-{epoch}").shuffle(numbered)
    fetch = _Fetching(channel, environ)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=f"refs-{channel.name}") as pool:
        waiting: deque[Future[bytes]] = deque()
        try:
            for number, line in numbered:
                where = f"line {number} of the augmented manifest {channel.path}"
                fields = _fields(line, where)
                for name in channel.attributes:
                    waiting.append(pool.submit(_attribute, fields, name, where, fetch))
                    if len(waiting) >= _AHEAD:
                        yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _fields(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise TrainshedError(f"{where} is not JSON") from None
    return fields if isinstance(fields, dict) else {}


def _attribute(fields: dict[str, Any], name: str, where: str, fetch: Callable[[str], bytes]) -> bytes:
    if name not in fields:
        raise TrainshedError(f"{where} has no attribute {name!r}")
    value = fields[name]
    if not name.endswith(REF):
        return value.encode() if isinstance(value, str) else json.dumps(value).encode()
    if not isinstance(value, str):
        raise TrainshedError(f"{where}: {name!r} does not name an object")
    try:
        return fetch(value)
    except OSError as error:
        raise TrainshedError(f"{where}: {value} cannot be read: {error.strerror or error}") from error


class _Fetching:
    """Reads what `-ref` attributes name: objects on S3; for a manifest of this machine files, too."""

    def __init__(self, channel: ChannelSpec, environ: Mapping[str, str]) -> None:
        self._channel, self._environ = channel, environ
        self._bucket: Bucket | None = None
        self._lock = threading.Lock()  # clients are made one at a time

    def __call__(self, name: str) -> bytes:
        if name.startswith(S3):
            return self._object(name)
        if self._channel.remote:
            raise TrainshedError(
                f"{name} is not on S3, as all must be that a manifest on S3 names", hint="it would be a file of this machine"
            )
        path = os.path.join(os.path.dirname(self._channel.path), name.removeprefix("file://"))
        with open(path, "rb") as file:
            return file.read()

    def _object(self, uri: str) -> bytes:
        from .fetching.s3 import Bucket

        with self._lock:
            self._bucket = self._bucket or Bucket(uri, self._environ)
        return self._bucket.at(uri).read()
