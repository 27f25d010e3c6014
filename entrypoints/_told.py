"""What the columns of a table, or the fields of other data, are and what becomes of them: said before training.

Imports the standard library alone, as programs do that look at their data before torch is loaded.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import LEAVE_OUT, say_first, write_json

SHOWN = 40  # columns that are printed; the file has all
COUNTED = 1_000_000  # cells of which different ones are counted
TABLES = "tables"  # in the folder of output data, for the run's report
COLUMNS = ("name", "kind", "values", "from, to or examples", "becomes")


@dataclass(frozen=True)
class Field:
    """A column or a field.

    kind: date, number, text ... values: how many are there, `different` how many of them, -1 where they were not counted.
    missing: how many are not there. span: the least and the largest value, or examples. becomes: what a model takes.
    """

    name: str
    kind: str
    values: int
    different: int
    missing: int
    span: str
    becomes: str

    def cells(self) -> tuple[str, ...]:
        """For a line."""
        counted = f", {self.different:,} different" if self.different >= 0 else ""
        gone = f", {self.missing:,} missing" if self.missing else ""
        return self.name, self.kind, f"{self.values:,} values{counted}{gone}", self.span, f"-> {self.becomes}"


def fields_of(table: Any, features: Any, target: Any = None) -> list[Field]:
    """What `Features` makes of a table's columns, with its target first."""
    made = [] if table.target is None or target is None else [_target(table, target)]
    if table.weights is not None:
        made.append(field("(weight)", table.weights, "number", "weight of the row"))
    if table.sparse is not None:
        made.append(sparse(table, features.width))
    return [*made, *(_column(name, table.columns[name], features) for name in features.columns)]


def texts(name: str, values: Sequence[str], becomes: str) -> Field:
    """A field of texts, by how long they are."""
    sizes = [len(value) for value in values]
    span = f"{min(sizes):,} to {max(sizes):,} characters" if sizes else ""
    gone = sizes.count(0)
    return Field(name, "text", len(sizes) - gone, len(set(values)), gone, span, becomes)


def labels(name: str, values: Sequence[str], becomes: str) -> Field:
    """A field of labels, by which there are most of."""
    return Field(name, "label", len(values), len(set(values)), 0, _span(list(values)), becomes)


def pictures(count: int, shape: str) -> Field:
    """The pictures, as a network takes them."""
    return Field("image", "picture", count, -1, 0, "", f"pixels, {shape}")


def numbers(name: str, values: Iterable[float], becomes: str) -> Field:
    """A field of numbers, with nan for what is missing."""
    import numpy

    return field(name, numpy.fromiter(values, numpy.float64), "number", becomes)


def say(hp: Namespace, what: str, rows: int, fields: Sequence[Field], leads: bool = True) -> None:
    """Prints the fields as a table and keeps them as columns.json beside the metrics, on the first rank alone."""
    if not leads:
        return
    cells = [field.cells() for field in fields]
    table(hp, "columns", f"{what}: {rows:,} rows, {len(fields)} columns", COLUMNS, cells, heads=False)


def table(
    hp: Namespace, name: str, title: str, heads_of: Sequence[str], rows: Sequence[Sequence[object]], heads: bool = True
) -> None:
    """Prints a table, and keeps it for the run's report where training follows.

    name: of its file. heads_of: of columns; heads: whether they are printed.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    for line in lines(title, [list(heads_of)] * heads + texts[:SHOWN]):
        say_first(line)
    if len(rows) > SHOWN:
        say_first(f"  and {len(rows) - SHOWN} more, in {TABLES}/{name}.json")
    if not hp.check_data:
        keep(hp, name, title, heads_of, texts)


def keep(hp: Namespace, name: str, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Keeps a table for the run's report; arguments as for `table`."""
    content = {"title": title, "columns": list(heads), "rows": [list(row) for row in rows]}
    write_json(Path(hp.output_data_dir) / TABLES / f"{name}.json", content)


def lines(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """The table, a line each, whatever signs its cells have."""
    title, rows = _printable(title), [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    made = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return [title, *("  " + "  ".join(row).rstrip() for row in made)]


def _printable(text: str) -> str:
    """With line ends and other signs that move what is printed as Python writes them."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def _column(name: str, values: Any, features: Any) -> Field:
    if name in features.dates:
        when = features.dates[name]
        moments = [when.read(text) for text in {*values.tolist()} - {None}] if values.dtype == object else []
        span = f"{min(moments):%Y-%m-%d} to {max(moments):%Y-%m-%d}" if moments else ""
        return field(name, values, "date", ", ".join(when.parts), span)
    if name in features.categories:
        return field(name, values, "text", f"{len(features.categories[name]):,} categories")
    made = field(name, values, "number", "number")
    if made.different == 1 and not made.missing:
        return field(name, values, "number", f"one value: nothing to learn from ({LEAVE_OUT})")
    return made if made.values else field(name, values, "empty", f"nothing: it has no values ({LEAVE_OUT})")


def _target(table: Any, target: Any) -> Field:
    classes = target.classes
    count = len(classes) if classes is not None else target.count
    kind = "text" if table.target.dtype == object else "number"
    return field(f"{target.name} (target)", table.target, kind, f"{count} classes" if count else "number to learn")


def sparse(table: Any, width: int) -> Field:
    """All the columns of a sparse table."""
    there = int(table.sparse.nnz)
    gone = table.rows * width - there
    span = _span(table.sparse.data) if there else ""
    return Field(f"{width:,} features", "sparse", there, -1, gone, span, "numbers; what is not written is missing")


def field(name: str, values: Any, kind: str, becomes: str, span: str | None = None) -> Field:
    """A column as it is: an array of float64 with nan, or of objects with None."""
    import numpy

    if values.dtype == object:
        there: Any = [value for value in values.tolist() if value is not None]
        different = len(set(there))
    else:
        there = values[~numpy.isnan(values)]
        different = len(numpy.unique(there)) if len(there) <= COUNTED else -1
    shown = _span(there) if span is None else span
    return Field(name, kind, len(there), different, len(values) - len(there), shown, becomes)


def _span(there: Any) -> str:
    """Least and largest of numbers; examples of texts, the most frequent ones first."""
    if not len(there):
        return ""
    if not isinstance(there, list):
        return f"{there.min():.6g} to {there.max():.6g}"
    from collections import Counter

    return _examples(text for text, _ in Counter(there).most_common(3))


def _examples(texts: Iterable[str]) -> str:
    return ", ".join(text if len(text) <= 16 else f"{text[:15]}…" for text in map(str, texts))
