"""Reads time series: JSON lines with start, target, cat and dynamic_feat, the form of the platform's DeepAR.

Imports the standard library alone, so that bad data is named before torch is loaded. Source of the form: "Input/Output
Interface for the DeepAR Algorithm" of SageMaker's developer guide.
"""

from __future__ import annotations

import datetime
import gzip
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from _common import Problem
from _jsonlines import Bad, examples_below, kind_of, lines, names_of, object_of, shortened
from _predicting import Answers, files_to_predict

ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
UNITS = {"A": "Y", "Y": "Y", "Q": "Q", "M": "M", "W": "W", "D": "D", "B": "B", "H": "h", "h": "h", "T": "min", "min": "min",
         "S": "s", "s": "s"}  # fmt: skip
LARGEST = 1e18  # of a value: squares of larger ones leave 32 bits
YEARS = 1700, 2200  # of a start, what pandas counts in nanoseconds, with room for the series

Row = list[float]


@dataclass(frozen=True)
class Series:
    """One series. start: of its first value. target: NaN where a value is missing. features: [features][time]."""

    where: str
    start: datetime.datetime
    target: Row
    cat: tuple[int, ...]
    features: tuple[tuple[float, ...], ...]
    line: dict[str, Any]


def frequency(text: str) -> str:
    """The time between values as pandas writes it: `H` is `h`. Raises Problem."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})?([A-Za-z]+)", text.strip())
    if not match or match[2] not in UNITS:
        raise Problem(f"time_freq {text!r} is not one of M, W, D, H, min (with a number before it: 15min)")
    return (match[1] or "") + UNITS[match[2]]


def load(path: str, what: str) -> list[Series]:
    """The series of all files below a folder, in order of files and lines.

    Raises:
        Problem: there is none, or one is not what it must be; the first such is named, and how many there are.
    """
    kinds = {"file of JSON lines": ENDINGS}
    return examples_below(path, what, kinds, _unpacked, lambda line, where: series_of(object_of(line), where))


def load_file(path: str, answers: Answers) -> list[Series]:
    """The series of a file or folder to go on with. answers: is told which lines are none. Raises Problem."""
    found = []
    files = files_to_predict(path, "one of JSON lines with start and target, or a folder of them")
    for file, name in files:
        read: list[tuple[str, bytes]] | None = answers.tried({"file": name}, partial(list, _unpacked(file, name)))
        for where, line in read or ():
            try:
                found.append(series_of(object_of(line), where))
            except Bad as error:
                answers.refuse({}, f"{where}: {error}", {"where": where})
    if not found and not answers.refused:
        raise Problem(f"predict: {path} is empty")
    return found


def _unpacked(file: Path, name: str) -> Iterator[tuple[str, bytes]]:
    if file.suffix != ".gz":
        yield from lines(file, name)
        return
    try:
        content = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise Problem(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            yield f"{name}:{number}", line


def series_of(content: dict[str, Any], where: str) -> Series:
    """A line's series. Raises Bad."""
    for name in ("start", "target"):
        if name not in content:
            raise Bad(f"has no {name} (its fields: {names_of(content)})")
    target = [_value(value, f"target[{at}]", True) for at, value in enumerate(_list(content["target"], "target"))]
    if not target:
        raise Bad("target is empty")
    given = content.get("cat", [])
    cat = [given] if isinstance(given, int) else _list(given, "cat")
    for at, value in enumerate(cat):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise Bad(f"cat[{at}] is {shortened(value)}, not a whole number of 0 or more")
    features = []
    for at, row in enumerate(_list(content.get("dynamic_feat") or [], "dynamic_feat")):
        name = f"dynamic_feat[{at}]"
        features.append(tuple(_value(value, f"{name}[{i}]", False) for i, value in enumerate(_list(row, name))))
        if len(features[-1]) < len(target) or len(features[-1]) != len(features[0]):
            raise Bad(f"{name} has {len(features[-1])} values, target has {len(target)}: it needs one for each")
    return Series(where, _start(content["start"]), target, tuple(cat), tuple(features), content)


def _list(given: Any, name: str) -> list[Any]:
    if not isinstance(given, list):
        raise Bad(f"{name} is {kind_of(given)}, not a list")
    return given


def _value(given: Any, name: str, may_be_missing: bool) -> float:
    if may_be_missing and (given is None or given == "NaN"):
        return math.nan
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise Bad(f"{name} is {shortened(given) if isinstance(given, str) else kind_of(given)}, not a number")
    if isinstance(given, float) and math.isnan(given):
        if may_be_missing:
            return math.nan
        raise Bad(f"{name} is missing: values of features must all be there")
    if not -LARGEST <= given <= LARGEST:
        raise Bad(f"{name} is beyond {LARGEST:g}: scale the series")
    return float(given)


def _start(given: Any) -> datetime.datetime:
    if not isinstance(given, str):
        raise Bad(f"start is {kind_of(given)}, not a string like 2024-01-31 00:00:00")
    try:
        start = datetime.datetime.fromisoformat(given.strip())
    except ValueError as error:
        raise Bad(f"start is {shortened(given)}, not a time like 2024-01-31 00:00:00") from error
    if start.tzinfo is not None:
        raise Bad(f"start is {shortened(given)}: leave out the time zone")
    if not YEARS[0] <= start.year <= YEARS[1]:
        raise Bad(f"start is {shortened(given)}: years go from {YEARS[0]} to {YEARS[1]} here")
    return start
