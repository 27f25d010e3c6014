"""Reads texts that belong together: pairs, triplets, and pairs with a score; each line checked before training.

Imports the standard library alone, so that bad data is named before torch is loaded. The names of fields and columns are
those of sentence-transformers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import Problem
from _jsonlines import Bad, examples_below, kind_of, lines, names_of, object_of, shortened, text_of
from _labelled import table_of

KINDS = {"JSON lines": (".jsonl", ".json"), "CSV with names of columns": (".csv", ".csv.gz")}
FORMS = (("anchor", "positive", "negative"), ("sentence1", "sentence2", "score"))
WANTED = "anchor and positive (and negative), or sentence1, sentence2 and score"


@dataclass(frozen=True)
class Related:
    """Texts, two or three of them; score: how alike the two are, from 0 to 1; None for texts that belong together."""

    texts: tuple[str, ...]
    score: float | None
    where: str


def load(path: str, what: str) -> list[Related]:
    """The texts of all files below a folder, in order of files and lines.

    Raises:
        Problem: there is none, or a line is not what it must be, or they are not alike; the first such is named.
    """
    return examples_below(path, what, KINDS, _rows, _related)


def form(row: Related) -> str:
    """Which of the three forms an example has."""
    return "scores" if row.score is not None else {2: "pairs", 3: "triplets"}[len(row.texts)]


def _related(row: dict[str, Any] | Bad, where: str) -> Related:
    if isinstance(row, Bad):
        raise row
    (first, second, third), (one, other, score) = FORMS
    if first in row and second in row:
        names = [first, second, *([third] if row.get(third) is not None else [])]
        return Related(tuple(text_of(row[name], name) for name in names), None, where)
    if one in row and other in row and score in row:
        return Related((text_of(row[one], one), text_of(row[other], other)), _score(row[score]), where)
    raise Bad(f"has neither {WANTED} (its fields: {names_of(row)})")


def _score(given: Any) -> float:
    try:
        value = float(given) if isinstance(given, str) else given
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Bad(f"score is {shortened(given) if isinstance(given, str) else kind_of(given)}, not a number")
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise Bad(f"score is {value:g}, not from 0 to 1: scale it")
    return float(value)


def _rows(file: Path, name: str) -> Iterator[tuple[str, dict[str, Any] | Bad]]:
    if not name.endswith(KINDS["CSV with names of columns"]):
        for where, line in lines(file, name):
            try:
                yield where, object_of(line)
            except Bad as error:
                yield where, error
        return
    rows = table_of(file)
    names = [cell.strip() for cell in next(rows, (0, []))[1]]
    if double := [key for one in FORMS for key in one if names.count(key) > 1]:
        raise Problem(f"{name}: two columns have the name {double[0]!r} in the header: rename one")
    for number, cells in rows:
        if len(cells) != len(names):
            yield f"{name}:{number}", Bad(f"has {len(cells)} cells, the first line has {len(names)}")
        else:
            row = {key: value for key, value in zip(names, cells, strict=True) if value or key != FORMS[0][2]}
            yield f"{name}:{number}", row
