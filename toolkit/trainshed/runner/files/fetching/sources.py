"""The source of a channel that is elsewhere, by the kind of its address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TypeVar

from trainshed.base.entry_points import load
from trainshed.base.errors import TrainshedError
from trainshed.base.wings import module_of_wing
from trainshed.contract.model_reference import SCHEME as MODEL

from ...job.addresses import GROUP
from ...job.job import ChannelSpec
from .items import Item, Source
from .progress import TransferProgress
from .ranges import patiently

Value = TypeVar("Value")
Listed = tuple[Source, list[Item]]
Lister = Callable[[ChannelSpec, Mapping[str, str]], Listed]


def listed(channel: ChannelSpec, environ: Mapping[str, str]) -> Listed:
    """Finds where a channel comes from, and what it is made of, sorted by name.

    Raises:
        TrainshedError: it cannot be listed, or there is nothing.
    """
    scheme = channel.path.partition("://")[0]
    lister = _LISTERS.get(scheme) or load(GROUP, scheme, _is_lister, "source")
    if lister is None:
        raise TrainshedError(f"{channel.path}: cannot be fetched", hint=f"is the package that adds {scheme}:// installed?")
    source, items = lister(channel, environ)
    return source, items


def pinned(address: str, environ: Mapping[str, str]) -> str:
    """The address that names one state of the data, where a `model://` address names a stage or the newest version.

    Raises:
        TrainshedError: there is no such version, or the store cannot be read.
    """
    if not address.startswith(MODEL):
        return address
    one: str = _model_store().pinned(address, environ)
    return one


def _model_store() -> ModuleType:
    return module_of_wing("studio.models.channel_source", f"a channel from {MODEL}")


def _patiently(channel: ChannelSpec, work: Callable[[], Value]) -> Value:
    return patiently(work, channel.path, threading.Event(), TransferProgress("", 0, 0))


def _s3(channel: ChannelSpec, environ: Mapping[str, str]) -> Listed:
    from .from_s3 import Objects
    from .s3 import Bucket

    return Objects(environ), Bucket(channel.path, environ).objects(channel.s3_type)


def _web(channel: ChannelSpec, environ: Mapping[str, str]) -> Listed:
    from .from_web import Web

    web = Web()
    return web, _patiently(channel, lambda: web.items(channel.path, manifest=channel.s3_type == "ManifestFile"))


def _hub(channel: ChannelSpec, environ: Mapping[str, str]) -> Listed:
    from .from_hub import Dataset

    dataset = Dataset(channel.path)
    return dataset, _patiently(channel, dataset.files)


def _model(channel: ChannelSpec, environ: Mapping[str, str]) -> Listed:
    model = _model_store().source_of(channel.path, environ)
    return model, model.items()


def _rclone(channel: ChannelSpec, environ: Mapping[str, str]) -> Listed:
    from .from_rclone import RcloneRemote

    remote = RcloneRemote(channel.path, environ)
    return remote, _patiently(channel, remote.items)


def _is_lister(found: object, scheme: str) -> bool:
    return callable(found)


# What lists a channel, by the scheme of its address. Packages add others by entry points of `GROUP`.
_LISTERS: dict[str, Lister] = {
    "s3": _s3, "http": _web, "https": _web, "hf": _hub, "model": _model, "gs": _rclone, "rclone": _rclone,
}  # fmt: skip
