"""Warm pools as a table, for `trainshed ps`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.units import duration, size

from ..files.warm_pool import Standing, size_of
from .columns import in_columns


def table(pools: Iterable[Standing]) -> str:
    """One line a pool, below a line with titles; "" for none."""
    rows = [
        (
            one.name,
            *_told(one),
            "processes" if not one.shape.image else f"image {one.shape.image[:19]}",
            size(size_of(one.folder)),
        )
        for one in pools
    ]
    return (
        in_columns([("WARM POOL", "STATUS", "FOR", "OF", "HOLDS"), *(tuple(map(one_line, row)) for row in rows)])
        if rows
        else ""
    )


def facts(one: Standing) -> dict[str, Any]:
    """A pool as JSON values; `until` in seconds since the epoch, 0 while it is in use."""
    run = one.run.get("Name", "") if one.in_use else ""
    return {
        "name": one.name, "job": one.job, "in_use": one.in_use, "run": run, "until": one.until,
        "image": one.shape.image, "bytes": size_of(one.folder), "folder": one.folder,
    }  # fmt: skip


def _told(one: Standing) -> tuple[str, str]:
    if one.in_use:
        return "in use", one.run.get("Name") or "-"
    left = one.until - time.time() if one.until else one.seconds
    return "free", f"{duration(max(0.0, left))} more"
