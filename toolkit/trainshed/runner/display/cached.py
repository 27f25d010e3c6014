"""What was fetched for channels and is kept for other runs, for `trainshed cache ls` and the page."""

from __future__ import annotations

from typing import Any

from ..files.fetching.file_cache import Cache, CachedFile


def facts(cache: Cache, *, files: bool = False) -> dict[str, Any]:
    """The cache as JSON values: `folder`, `limit`, and `addresses`, what was used last first.

    Args:
        files: an address is a file, not a folder.
    """
    groups: dict[str, list[CachedFile]] = {}
    for entry in reversed(cache.entries()):
        url = entry.url
        groups.setdefault((url if files else url[: url.rfind("/") + 1]) or "(not known)", []).append(entry)
    rows = [_row(address, held) for address, held in groups.items()]
    return {"folder": cache.folder, "limit": cache.limit, "addresses": rows}


def _row(address: str, held: list[CachedFile]) -> dict[str, Any]:
    return {
        "address": address,
        "bytes": sum(one.size for one in held),
        "files": len(held),
        "partial": sum(not one.whole for one in held),
        "used": max(one.used for one in held),
    }
