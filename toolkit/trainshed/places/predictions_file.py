"""Predictions as a file: JSON lines, CSV, or Parquet, by its ending; it appears whole."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from trainshed.base.errors import TrainshedError

Row = dict[str, Any]


def require_writable(path: str) -> None:
    """Raises TrainshedError where no file of that name can be written, before anything is predicted."""
    if ending(path) not in WRITERS:
        raise TrainshedError(f"{path}: predictions are written as {', '.join(sorted(WRITERS))}", hint="name the file so")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise TrainshedError(f"{path}: there is no such folder")
    if ending(path) == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise TrainshedError(f"{path} needs pyarrow", hint="pip install 'trainshed[data]'; or name a .csv") from error


def write(rows: Iterable[Row], path: str) -> None:
    """Writes rows as the ending says. Raises TrainshedError."""
    aside = f"{os.path.dirname(os.path.abspath(path))}/.{os.path.basename(path)}.{os.getpid()}"
    try:
        WRITERS[ending(path)](list(rows), aside)
        os.replace(aside, path)
    except OSError as error:
        raise TrainshedError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(aside):
            os.unlink(aside)


def ending(path: str) -> str:
    """`.csv` of a path."""
    return os.path.splitext(path)[1].lower()


def _lines(rows: list[Row], path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _csv(rows: list[Row], path: str) -> None:
    names = columns(rows)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in rows)


def columns(rows: Iterable[Row]) -> list[str]:
    """All names, in the order in which they come; `error` last."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return sorted(names, key=lambda name: name == "error")


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else value


def _parquet(rows: list[Row], path: str) -> None:
    import pyarrow
    from pyarrow import parquet

    made = {}
    for name in columns(rows):
        values = [row.get(name) for row in rows]
        try:
            made[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError):  # values of several kinds
            made[name] = pyarrow.array([None if value is None else str(_cell(value)) for value in values])
    parquet.write_table(pyarrow.table(made), path)


WRITERS: dict[str, Callable[[list[Row], str], None]] = {
    ".csv": _csv,
    ".json": _lines,
    ".jsonl": _lines,
    ".parquet": _parquet,
}
