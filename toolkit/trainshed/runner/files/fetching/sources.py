"""The source of a channel that is elsewhere, by the kind of its address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TypeVar

from trainshed.base.wings import module_of_wing
from trainshed.contract.model_reference import SCHEME as MODEL

from ...job.addresses import HUB
from ...job.job import S3, Channel
from .items import Item, Source
from .progress import Progress
from .ranges import patiently

Value = TypeVar("Value")


def listed(channel: Channel, environ: Mapping[str, str]) -> tuple[Source, list[Item]]:
    """Finds where a channel comes from, and what it is made of, sorted by name.

    Raises:
        TrainshedError: it cannot be listed, or there is nothing.
    """
    if channel.path.startswith(S3):
        from .from_s3 import Objects
        from .s3 import Bucket

        return Objects(environ), Bucket(channel.path, environ).objects(channel.s3_type)
    if channel.path.startswith(("http://", "https://")):
        from .from_web import Web

        web = Web()
        return web, _patiently(channel, lambda: web.items(channel.path, manifest=channel.s3_type == "ManifestFile"))
    if channel.path.startswith(HUB):
        from .from_hub import Dataset

        dataset = Dataset(channel.path)
        return dataset, _patiently(channel, dataset.files)
    if channel.path.startswith(MODEL):
        model = _model_store().source_of(channel.path, environ)
        return model, model.items()
    from .from_rclone import Remote

    remote = Remote(channel.path, environ)
    return remote, _patiently(channel, remote.items)


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


def _patiently(channel: Channel, work: Callable[[], Value]) -> Value:
    return patiently(work, channel.path, threading.Event(), Progress("", 0, 0))
