"""What the programs print as predictions: JSON lines. A row that cannot be predicted is a line with `error`; others go on.

Imports the standard library alone, as programs do that look at their data before torch is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from _common import Problem, note

Made = TypeVar("Made")


class Answers:
    """Predictions, a line each, with what the data has beside its features: ids, names, other fields."""

    def __init__(self) -> None:
        self.given = 0
        self.refused: list[str] = []

    def say(self, kept: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Prints one. A field of the data that has a name of the answer's is `input_NAME`."""
        self.given += 1
        _print(kept, answer)

    def refuse(self, kept: Mapping[str, Any], why: object, place: Mapping[str, Any] | None = None) -> None:
        """Prints what there is of a row that cannot be predicted, and why."""
        self.refused.append(str(why))
        _print(kept, {**(place or {}), "error": str(why)})

    def tried(self, kept: Mapping[str, Any], work: Callable[[], Made]) -> Made | None:
        """What `work` makes of one row or file; None where that is a Problem, which is printed."""
        try:
            return work()
        except Problem as problem:
            self.refuse(kept, problem)
            return None

    def end(self) -> None:
        """Says how many are missing. Raises Problem where there is nothing else."""
        if not self.refused:
            return
        more = f" (and {len(self.refused) - 1} more)" if len(self.refused) > 1 else ""
        if not self.given:
            raise Problem(f"predict: {self.refused[0]}{more}")
        note(f"{len(self.refused)} of {self.given + len(self.refused)} could not be predicted: {self.refused[0]}{more}")


def files_to_predict(path: str, what: str, endings: tuple[str, ...] = ()) -> list[tuple[Path, str]]:
    """(file, its name for messages) of a file, or of those in a folder, in order. Raises Problem. what: they are."""
    root = Path(path)
    if root.is_file():
        return [(root, root.name)]
    below = sorted(root.rglob("*")) if root.is_dir() else []
    names = [(file, file.relative_to(root).as_posix()) for file in below if file.is_file()]
    found = [one for one in names if not one[1].startswith(".") and "/." not in one[1] and one[1].endswith(endings or "")]
    if not found:
        raise Problem(f"predict: {path} {'holds no files' if root.is_dir() else 'is not a file'}; give {what}")
    return found


def _print(kept: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    beside = {f"input_{name}" if name in answer else name: value for name, value in kept.items()}
    print(json.dumps({**beside, **answer}, ensure_ascii=False, default=str), flush=True)
