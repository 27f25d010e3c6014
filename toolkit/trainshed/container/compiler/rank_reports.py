"""Reads the ranks' reports on their compiler."""

from __future__ import annotations

import json
import os

from trainshed.base.files import remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.contract.wire.compile_plan import CompilePlan

LONGEST = 1 << 20


def read(plan: CompilePlan) -> dict[str, Any]:
    """Rank -> its counters (`trainshed.compiler.counters` has their names); those without a report are missing."""
    found = {}
    for rank, path in _files(plan):
        try:
            with open(path, "rb") as file:
                value = json.loads(file.read(LONGEST))
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            found[rank] = value
    return found


def clear(plan: CompilePlan) -> None:
    """Removes the reports of an earlier run in the same folder."""
    for _, path in _files(plan):
        remove(path)


def _files(plan: CompilePlan) -> list[tuple[str, str]]:
    """(rank, path) of this host's reports."""
    prefix, suffix = f"{plan.host}.rank", ".json"
    try:
        names = sorted(os.listdir(plan.report))
    except OSError:
        return []
    mine = [name for name in names if name.startswith(prefix) and name.endswith(suffix)]
    return [(name[len(prefix) : -len(suffix)], f"{plan.report}/{name}") for name in mine]
