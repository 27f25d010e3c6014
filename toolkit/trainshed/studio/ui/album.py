"""Pictures, tables and the like of a run, for its page: what there is, by name and step, and each when it is looked at."""

from __future__ import annotations

import os
import re
from itertools import groupby
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.secrets import mask_text
from trainshed.metrics.media import KINDS, LARGEST
from trainshed.metrics.media_reading import Medium, media_of
from trainshed.runner.state.outputs import outputs_of
from trainshed.studio.pages.media_view import shown

from . import browse

MOST_NAMES = 500
_FILE = re.compile(r"(?:[a-z0-9-]+/)*output/metrics/media/[0-9]+-[0-9]+/[0-9]+\.([a-z0-9]{3,4})")


def listed(folder: str, had: str) -> dict[str, Any]:
    """What a run has kept.

    Args:
        had: the page's `had` of its last question.

    Returns:
        had: what stands for all that there is now. names: None where the page has it all; else of each name `logged`, how
        often it was logged, and `steps`: step, epoch, time, and of each file its path, kind and words.
    """
    found = media_of(outputs_of(folder))
    now = ";".join(f"{name}:{len(media)}:{media[-1].path}" for name, media in found.items())
    now = f"{len(found)}-{hash(now)}"
    if now == had:
        return {"had": now, "names": None}
    return {"had": now, "names": [_name(folder, *one) for one in list(found.items())[:MOST_NAMES]]}


def _name(folder: str, name: str, media: tuple[Medium, ...]) -> dict[str, Any]:
    steps = [[*one] for _, one in groupby(media, key=lambda medium: (os.path.dirname(medium.path), medium.call))]
    rows = [[one[0].step, one[0].epoch, one[0].time, [_file(folder, medium) for medium in one]] for one in steps]
    return {"name": _line(name), "logged": media[-1].call, "steps": rows}


def _file(folder: str, medium: Medium) -> list[str]:
    said = ", ".join(filter(None, (medium.caption, f"without {medium.cut}" if medium.cut else "")))
    return [os.path.relpath(medium.path, folder), medium.kind, _line(said)]


def one(folder: str, path: str, kind: str) -> dict[str, Any]:
    """What to show of one file (`Shown`). Raises NoFile: it is no such file of the run."""
    match = _FILE.fullmatch(path)
    if match is None or kind not in KINDS or match[1] not in KINDS[kind].endings:
        raise browse.NoFile("there is no such file in this run")
    fd, _ = browse.opened(folder, path)
    with os.fdopen(fd, "rb") as file:
        return shown(kind, match[1], file.read(LARGEST)).plain()


def _line(words: str) -> str:
    return one_line(mask_text(words))[:500]
