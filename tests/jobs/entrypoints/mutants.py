"""Tables that nobody has written by hand, as files of every format, some of them damaged."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from typing import Any

CELLS = ["", "NA", "nan", "?", "inf", "-inf", "1e400", "1e39", "x", "-1", "0", "2", "7", '"', "'", "a,b", '"a,b"', "\x00",
         "é", " 3 ", "1:2", "0x10", "1_000", "true", "-0", "1e-320", "\t", "+3", "#", "12abc", "None", "٣"]  # fmt: skip


def table(draw: random.Random) -> list[list[str]]:
    """Rows of cells, the first of which is the target; perhaps with names."""
    width, rows = draw.choice([1, 2, 3, 6]), draw.choice([1, 2, 5, 30, 60])
    kind = draw.choice(["number", "binary", "classes", "text", "positive"])
    target: dict[str, Callable[[], Any]] = {
        "number": lambda: round(draw.gauss(0, 3), 3),
        "binary": lambda: draw.randrange(2),
        "classes": lambda: draw.randrange(4),
        "text": lambda: draw.choice(["yes", "no"]),
        "positive": lambda: round(draw.random() + 0.1, 3),
    }
    made = [[str(target[kind]())] + [str(round(draw.gauss(0, 2), 3)) for _ in range(width)] for _ in range(rows)]
    if draw.random() < 0.3:
        for row in made:
            row[-1] = draw.choice(["red", "green", "blue"])
    if draw.random() < 0.5:
        made.insert(0, ["t", *"abcdef"[:width]])
    return made


def mutated(rows: list[list[str]], draw: random.Random) -> list[list[str]]:
    """The rows with some of them changed."""
    rows = [list(row) for row in rows]
    for _ in range(draw.choice([0, 0, 1, 1, 2, 5])):
        row = draw.choice(rows)
        what = draw.randrange(6)
        if what == 0 and row:
            row[draw.randrange(len(row))] = draw.choice(CELLS)
        elif what == 1:
            row.append(draw.choice(CELLS))
        elif what == 2 and len(row) > 1:
            row.pop()
        elif what == 3:
            rows.insert(draw.randrange(len(rows) + 1), draw.choice([[], [""], list(row)]))
        elif what == 4 and len(row) > 1:
            column = draw.randrange(len(row))
            for other in rows:
                if column < len(other):
                    other[column] = draw.choice(CELLS)
        elif len(rows) > 1:
            rows.remove(row)
    return rows


def file_of(rows: list[list[str]], draw: random.Random) -> tuple[str, bytes]:
    """(name, content) of a file with these rows, perhaps damaged."""
    kind = draw.choice(["csv", "csv", "csv", "libsvm", "csv.gz", "parquet"])
    if kind == "libsvm":
        lines = [" ".join([row[0] if row else "", *(f"{at}:{cell}" for at, cell in enumerate(row[1:]))]) for row in rows]
        data = "\n".join(lines).encode()
    elif kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        width = min((len(row) for row in rows if row), default=1)
        cells = [row for row in rows[1:] if len(row) >= width]
        named: dict[str, Any] = {}
        for at in range(width):
            values = [row[at] for row in cells]
            try:
                named[f"{'tabcdefghij'[at % 11]}"] = [float(value) for value in values]
            except ValueError:
                named[f"{'tabcdefghij'[at % 11]}"] = values
        held = io.BytesIO()
        parquet.write_table(pyarrow.table(named), held)
        data = held.getvalue()
    else:
        data = draw.choice(["\n", "\r\n"]).join(",".join(row) for row in rows).encode()
        data = (b"\xef\xbb\xbf" if draw.random() < 0.1 else b"") + data
    if kind == "csv.gz":
        data = gzip.compress(data)
    if draw.random() < 0.15 and data:
        spoilt = bytearray(data)
        for _ in range(draw.choice([1, 3])):
            spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
        data = bytes(spoilt)
    if draw.random() < 0.08:
        data = data[: draw.randrange(len(data) + 1)]
    return f"rows.{kind}", data
