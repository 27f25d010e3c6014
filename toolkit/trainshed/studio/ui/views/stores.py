"""Warm pools and the cache of channels: `trainshed ps` and `trainshed cache ls`."""

from __future__ import annotations

from trainshed.base.units import size
from trainshed.contract.wire.variables import CHANNEL_CACHE
from trainshed.runner.display import cached, pools
from trainshed.runner.files.fetching.file_cache import find_cache
from trainshed.runner.files.warm_pool import every

from .kind import Kind
from .parts import Part, link, moment, table, view


class Stores(Kind):
    """What is kept for the next run on this machine."""

    def listed(self) -> Part:
        """Both; nothing in a copy, since they are the machine's."""
        parts = [self._pools(), self._cache()] if self.known.whole else []
        return view("Storage", parts)

    def _pools(self) -> Part:
        rows = []
        for one in every(self.environ):
            told = pools.facts(one)
            used = link(told["run"], self.known.address(one.run.get("Folder", ""))) if told["run"] else ""
            state = "in use" if told["in_use"] else "free"
            held = (told["image"][:19], size(told["bytes"]), told["folder"])
            rows.append((told["name"], state, used, moment(told["until"]), *held))
        head = ("pool", "state", "used by", "until", "image", "holds", "folder")
        return table("Warm pools", head, rows, empty="none: a job with keep_alive leaves one")

    def _cache(self) -> Part:
        cache = find_cache(self.environ)
        if cache is None:
            return table("Cache of channels", (), [], empty=f"{CHANNEL_CACHE} is off: nothing is kept")
        told = cached.facts(cache)
        rows = [
            (one["address"], one["files"], size(one["bytes"]), one["partial"] or "", moment(one["used"]))
            for one in told["addresses"]
        ]
        total = size(sum(one["bytes"] for one in told["addresses"]))
        title = f"Cache of channels: {total} of {size(told['limit'])} in {told['folder']}"
        return table(title, ("address", "files", "size", "not whole yet", "used"), rows, empty="empty")
