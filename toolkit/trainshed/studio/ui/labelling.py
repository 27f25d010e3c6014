"""Tags and notes that are changed on the page, by the same functions as `trainshed tag` and `trainshed note`."""

from __future__ import annotations

from typing import Any

from trainshed.base.errors import TrainshedError
from trainshed.runner.state.stored import Stored
from trainshed.studio.catalogue import labels


def relabelled(run: Stored, asked: dict[str, Any]) -> dict[str, Any]:
    """Changes tags and notes of a run; what is said then, or `error`.

    Args:
        asked: by the page: `words` (`+tag=value`, `-tag`), `note` (to be added).
    """
    words, note = asked.get("words", []), asked.get("note", "")
    if not isinstance(note, str) or not isinstance(words, list):
        return {"error": "tags are a list, and a note is a text"}
    if not all(isinstance(word, str) and word[:1] in ("+", "-") for word in words):
        return {"error": "a tag begins with + or -"}
    try:
        wanted = labels.change_of(words)
        wanted = labels.Change(wanted.give, wanted.take, note.strip())
        labels.change(run.folder, wanted, labels.of_job(run))
    except TrainshedError as error:
        return {"error": error.message + (f" ({error.hint})" if error.hint else "")}
    return {"said": "kept"}
