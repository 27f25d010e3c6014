"""Reads texts with labels: CSV, JSON lines, and lines of fastText; each checked before anything is trained on it.

Imports the standard library alone, so that bad data is named before torch is loaded. `__label__x text` and the fields
`source` and `label` are those of the platform's BlazingText; CSV without names of columns (label, text) is what its other
text classification takes.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from _common import Problem, note
from _jsonlines import Bad, examples_below, kind_of, lines, names_of, object_of, shortened, text_of
from _predicting import Answers, files_to_predict

KINDS = {"CSV": (".csv", ".csv.gz"), "JSON lines": (".jsonl", ".json"), "lines of __label__x": (".txt", ".train", ".test")}
MARK = "__label__"
TEXTS, LABELS = ("text", "source"), ("label", "labels")
AGAIN = 0.5  # a column with more different values than this part of the rows has no labels
NAME = 3  # words that a name of a column has at most


@dataclass(frozen=True)
class Labelled:
    """A text and its labels, mostly one; other: a second text that goes with it."""

    text: str
    labels: tuple[str, ...]


def load(path: str, what: str, text: str, label: str) -> list[Labelled]:
    """The texts of all files below a folder, in order of files and lines.

    text, label: names of the columns or fields; "" for the usual ones.

    Raises:
        Problem: there is none, or one is not what it must be; the first such is named, and how many there are.
    """
    rows = partial(rows_of, text=text, label=label)
    return examples_below(path, what, KINDS, rows, lambda row, _: _labelled(row))


def _labelled(row: tuple[Any, Any] | Bad) -> Labelled:
    if isinstance(row, Bad):
        raise row
    text, given = row
    labels = given if isinstance(given, list) else [given]
    if not labels:
        raise Bad("has no label")
    return Labelled(text_of(text, "the text"), tuple(sorted({_label(one) for one in labels})))


def _label(value: Any) -> str:
    if isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value) and value == int(value)):
        value = str(value).lower() if isinstance(value, bool) else int(value)
    if not isinstance(value, (str, int, float)) or value != value:
        raise Bad(f"the label is {kind_of(value)}, neither a string nor a number")
    try:
        return text_of(str(value), "the label").strip().removeprefix(MARK)
    except ValueError as error:
        raise Bad("the label is a number that is too long") from error


# --- files ------------------------------------------------------------------------------------------------------------


def rows_of(file: Path, name: str, text: str, label: str) -> Iterator[tuple[str, tuple[Any, Any] | Bad]]:
    """(`name:line`, (text, label or labels)) of a file, or what is wrong with the line."""
    if name.endswith(KINDS["CSV"]):
        yield from _csv(file, name, text, label)
        return
    marked = name.endswith(KINDS["lines of __label__x"])
    for where, line in lines(file, name):
        try:
            yield where, _marked(line) if marked else _fields(object_of(line), text, label)
        except Bad as error:
            yield where, error


def _marked(line: bytes) -> tuple[str, list[str]]:
    try:
        words = line.decode("utf-8").split()
    except UnicodeDecodeError as error:
        raise Bad(f"is not UTF-8 (byte {error.start + 1} of the line)") from error
    labels = [word for word in words if word.startswith(MARK)]
    if not labels:
        raise Bad(f"has no label, a word that begins with {MARK}")
    return " ".join(word for word in words if not word.startswith(MARK)), labels


def _fields(content: dict[str, Any], text: str, label: str) -> tuple[Any, Any]:
    found = []
    for asked, usual in ((text, TEXTS), (label, LABELS)):
        name = next((one for one in ((asked,) if asked else usual) if one in content), None)
        if name is None:
            raise Bad(f"has no field {asked or usual[0]} (its fields: {names_of(content)})")
        found.append(content[name])
    return found[0], found[1]


def unpacked(file: Path) -> bytes:
    """What a file holds, packed by gzip or not; raises Problem."""
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if file.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise Problem(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _csv(file: Path, name: str, text: str, label: str) -> Iterator[tuple[str, tuple[Any, Any] | Bad]]:
    rows = list(table_of(file))
    if not rows:
        return
    first, width = [cell.strip() for cell in rows[0][1]], len(rows[0][1])
    (at, of), header = columns(first, [cells for _, cells in rows[1:] if len(cells) == width], text, label, name)
    for line, cells in rows[header:]:
        if len(cells) != width:
            yield f"{name}:{line}", Bad(f"has {len(cells)} cells, the first line has {width}")
        else:
            yield f"{name}:{line}", (cells[at], cells[of])


def table_of(file: Path) -> Iterator[tuple[int, list[str]]]:
    """(number of the line, cells) of the rows of a CSV file that have anything in them. Raises Problem."""
    import _separated  # which needs numpy

    line = 0
    try:
        for line, cells in _separated.rows_of(str(file), unpacked(file)):
            yield line, cells
    except csv.Error as error:
        raise Problem(f"{file}: line {line + 1} is not CSV: {error}") from error


def columns(first: list[str], below: list[list[str]], text: str, label: str, name: str) -> tuple[tuple[int, int], bool]:
    """Which columns hold text and label, and whether the first line has names; without them as `guessed`. Raises Problem."""
    found = [
        next((one for one in ((asked,) if asked else usual) if one in first), None)
        for asked, usual in ((text, TEXTS), (label, LABELS))
    ]
    if None not in found:
        if double := [one for one in found if first.count(one) > 1]:  # type: ignore[arg-type]
            raise Problem(f"{name}: two columns have the name {double[0]!r} in the header: rename one")
        return (first.index(found[0]), first.index(found[1])), True  # type: ignore[arg-type]
    if text or label or len(first) != 2:
        wanted = f"{text or TEXTS[0]} and {label or LABELS[0]}"
        raise Problem(
            f"{name}: has no columns {wanted} (its first line: {shortened(', '.join(first))}); "
            "name them by text_column and label_column; without a line of names, a file has two columns: label, text"
        )
    (at, of), header = guessed(first, below)
    if header or of != 0:
        which = f"{first[at]!r} and {first[of]!r}, its first line" if header else f"its columns {at + 1} and {of + 1}"
        note(f"{name}: text and label are {which}; text_column and label_column name others")
    return (at, of), header


def guessed(first: list[str], below: list[list[str]]) -> tuple[tuple[int, int], bool]:
    """Which of two columns hold text and label, the label first if the rows do not say, and whether a line has names.

    Labels come again and again. A first line has names if its label is that of no row, and its text is none of the texts
    and short: it is no row, then.
    """
    values = [{cells[at].strip() for cells in below} for at in (0, 1)]
    again = [at for at in (0, 1) if len(values[at]) <= AGAIN * len(below)]
    if not again or not below:
        return (1, 0), False
    new = all(first[at] not in values[at] for at in (0, 1))
    of = min(again, key=lambda at: (first[at] not in LABELS, len(values[at]))) if new else again[0]
    return (1 - of, of), new and len(first[1 - of].split()) <= NAME


# --- texts alone ------------------------------------------------------------------------------------------------------


def texts_of(path: str, text: str, answers: Answers) -> list[tuple[dict[str, Any], str]]:
    """(its other fields, text) of the texts to predict: CSV, JSON lines, or one text a line. Raises Problem.

    answers: is told which lines are no texts.
    """
    found = []
    files = files_to_predict(path, "one of CSV, JSON lines, or one text a line, or a folder of them")
    for file, name in files:
        of_file = {"file": name} if len(files) > 1 else {}
        read: list[tuple[str, Any]] | None = answers.tried(of_file, partial(list, _told(file, name, text)))
        for row, (where, content) in enumerate(read or (), 1):
            if isinstance(content, Bad):
                answers.refuse(of_file, f"{where}: {content}", {"row": row})
            else:
                found.append(({**of_file, **content[0]}, content[1]))
    if not found and not answers.refused:
        raise Problem(f"predict: {path} is empty")
    return found


def _told(file: Path, name: str, text: str) -> Iterator[tuple[str, tuple[dict[str, Any], str] | Bad]]:
    """(`name:line`, (other fields, text)) of a file, or what is wrong with the line. Raises Problem."""
    if name.endswith(KINDS["CSV"]):
        yield from _told_in_csv(file, name, text)
        return
    of_text = _told_in_object if name.endswith(KINDS["JSON lines"]) else _told_in_line
    for where, line in lines(file, name):
        try:
            yield where, of_text(line, text)
        except Bad as error:
            yield where, error


def _told_in_object(line: bytes, text: str) -> tuple[dict[str, Any], str]:
    content = object_of(line)
    name = next((one for one in ((text,) if text else TEXTS) if one in content), None)
    if name is None:
        raise Bad(f"has no field {text or TEXTS[0]} (its fields: {names_of(content)})")
    return {key: value for key, value in content.items() if key != name}, text_of(content[name], name)


def _told_in_line(line: bytes, text: str) -> tuple[dict[str, Any], str]:
    try:
        return {}, " ".join(word for word in line.decode("utf-8").split() if not word.startswith(MARK))
    except UnicodeDecodeError as error:
        raise Bad("is not UTF-8") from error


def _told_in_csv(file: Path, name: str, text: str) -> Iterator[tuple[str, tuple[dict[str, Any], str] | Bad]]:
    rows = list(table_of(file))
    head = rows[0][1] if rows else []
    column = next((one for one in ((text,) if text else TEXTS) if one in head), None)
    if column is None and rows and (text or len(head) > 1):
        raise Problem(f"{name} has no column {text or TEXTS[0]} (its first line: {shortened(', '.join(head))})")
    at = 0 if column is None else head.index(column)
    for number, row in rows[column is not None :]:
        if at >= len(row):
            yield f"{name}:{number}", Bad(f"has {len(row)} cells, too few")
            continue
        beside = {key: cell for key, cell in zip(head, row, strict=False) if key != column} if column else {}
        yield f"{name}:{number}", (beside, row[at])
