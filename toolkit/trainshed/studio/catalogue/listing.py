"""`trainshed ls`: which runs a question is answered with, and how they are shown: as a table, JSON or CSV."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable
from datetime import datetime, timezone

from trainshed.base.errors import one_line, shorten
from trainshed.base.plain_json import finite
from trainshed.base.record import Record
from trainshed.base.units import duration

from .condition import Question, Term
from .language import ExpressionError, Name, Node, read_expression, read_names
from .tables import COLUMNS, FACTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

USUAL = ("name", "state", "started", "duration")
MOST_USUAL = 3  # metrics that are shown where none is asked for
_FEW = 500  # runs that are looked up one by one
WIDEST = 48  # characters of a cell of the table; JSON and CSV have the whole text


class Wanted(Record):
    """What is asked for, as texts of the command line; "" for what is not. limit: 0 for all."""

    where: str = ""
    sort: str = ""
    columns: str = ""
    group: str = ""
    limit: int = 0


class Answer(Record):
    """Runs that fit, in order.

    columns: what is shown of each.
    kinds: of the columns, as `Fact.kind`.
    rows: values by column: None where a run does not have it, NaN where it measured that.
    runs: the numbers of the runs.
    total: how many fit, those beyond the limit included.
    """

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    runs: list[int]
    total: int


def ask(connection: sqlite3.Connection, wanted: Wanted, now: float | None = None) -> Answer:
    """The answer of an opened catalogue.

    Args:
        now: seconds since the epoch, for `3d ago` and `today`.

    Raises:
        ExpressionError: the question cannot be read, or names what no run has.
    """
    tree = read_expression(wanted.where, "--where", now) if wanted.where.strip() else None
    orders = read_names(wanted.sort, "--sort") if wanted.sort.strip() else []
    asked = read_names(wanted.columns, "--columns") if wanted.columns.strip() else []
    if any(minus for _, minus in asked):
        raise ExpressionError("--columns: a minus belongs to --sort: --sort -loss")
    question = Question(connection)
    runs = _fitting(connection, question, tree, wanted.group, orders)
    shown = [name for name, _ in asked] or _usual(connection, question.names)
    kinds, rows = values_of(connection, shown, runs[: wanted.limit or None])
    return Answer(tuple(map(str, shown)), kinds, rows, runs[: wanted.limit or None], len(runs))


def _fitting(
    connection: sqlite3.Connection, question: Question, tree: Node | None, group: str, orders: list[tuple[Name, bool]]
) -> list[int]:
    """The numbers of the runs that fit, in order."""
    conditions = ["runs.run IN temp.here"] if _has_table(connection, "here") else []
    values: list[object] = []
    if tree is not None:
        condition, values = question.condition(tree)
        conditions.append(condition)
    if group:
        conditions.append('runs."group" = ?')
        values = [*values, group]
    order = []
    question.where = "--sort"
    for name, minus in orders:
        term = question.term(_plain(name, "--sort"))
        down = " DESC" if minus else ""
        order += [f"{term.sql} IS NULL", f"{term.sql}{down}"]
        order += [f"{term.text} IS NULL", f"{term.text}{down}"] if term.text else []
    order += ['runs."started" DESC', 'runs."name"', "runs.run"]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    sql = f"SELECT runs.run FROM runs{question.joins}{where} ORDER BY {', '.join(order)}"
    return [run for (run,) in connection.execute(sql, (*question.join_values, *values))]


def fitting(connection: sqlite3.Connection, where: str, called: str) -> list[int]:
    """The numbers of the runs that an expression is true of. called: what it was given as. Raises ExpressionError."""
    return _fitting(connection, Question(connection, called), read_expression(where, called), "", [])


def values_of(
    connection: sqlite3.Connection, shown: list[Name], runs: list[int]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """(kinds, rows) of what is shown of runs: looked up for those alone, where they are few."""
    question = Question(connection, "--columns")
    picked = [_picked(question, name) for name in shown]
    where, values = _only(runs)
    columns = "".join(f", {sql}" for _, sqls in picked for sql in sqls)
    found = {
        row[0]: row
        for row in connection.execute(
            f"SELECT runs.run{columns} FROM runs{question.joins}{where}", (*question.join_values, *values)
        )
    }
    tags = _tags_of(connection, runs) if any(kind == "tags" for kind, _ in picked) else {}
    places, at = [], 1
    for kind, sqls in picked:
        places.append((kind, at))
        at += len(sqls)
    rows = [
        tuple(tags.get(run, {}) if kind == "tags" else _value(kind, found[run], place) for kind, place in places)
        for run in runs
    ]
    return tuple(kind for kind, _ in picked), rows


def _only(runs: list[int]) -> tuple[str, list[int]]:
    """A condition for a few runs; of many all rows are read, which takes less than to look each up."""
    return (f" WHERE runs.run IN ({', '.join('?' * len(runs))})", runs) if len(runs) <= _FEW else ("", [])


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_temp_master WHERE name = ?", (name,)).fetchone())


def _plain(name: Name, where: str) -> Name:
    if name.name == "tags" and name.prefix in ("", "run"):
        raise ExpressionError(f"{where}: runs are not ordered by their tags; use a tag's value: tag.stage")
    return name


def _usual(connection: sqlite3.Connection, used: Iterable[Name]) -> list[Name]:
    """What is shown where nothing is asked for: what the question is about, else the metrics that most runs have."""
    names = [Name(name) for name in USUAL]
    more = [name.replace(at=0) for name in used if not (name.name in FACTS and name.prefix in ("", "run"))]
    facts = [Name(name.name) for name in used if name.name in FACTS and name.prefix in ("", "run")]
    if not any(name.prefix in ("", "metric") for name in more):
        more += common_metrics(connection)
    return list(dict.fromkeys([*names, *facts, *more, Name("tags")]))


def common_metrics(connection: sqlite3.Connection) -> list[Name]:
    """The metrics that most runs have, losses first."""
    common = connection.execute(
        "SELECT n.name, (SELECT count(*) FROM names AS o WHERE o.name = n.name AND o.kind = 'hp')"
        " FROM metrics AS m JOIN names AS n ON n.number = m.name GROUP BY m.name"
        " ORDER BY instr(lower(n.name), 'loss') = 0, count(*) DESC, n.name LIMIT ?",
        (MOST_USUAL,),
    )
    return [Name(name, "metric" if twice or name in FACTS else "") for name, twice in common]


def all_names(connection: sqlite3.Connection) -> dict[str, list[Name]]:
    """What columns there may be: facts, and metrics, hyperparameters and tags that runs have."""
    found: dict[str, list[Name]] = {"run": [Name(name) for name in FACTS], "metric": [], "hp": [], "tag": []}
    for kind, name in connection.execute("SELECT kind, name FROM names ORDER BY name"):
        found[kind].append(Name(name, kind))
    return found


def _picked(question: Question, name: Name) -> tuple[str, tuple[str, ...]]:
    """(kind, what is selected) of a column."""
    if name.name == "tags" and name.prefix in ("", "run"):
        return "tags", ("runs.run",)  # looked up for the runs that are found: `_tags_of`
    term: Term = question.term(name)
    if term.kind == "either":
        return "either", (term.sql, term.text)
    if term.kind == "number" and not term.sql.startswith("runs."):
        return "metric", (term.there, term.sql)
    return term.kind, (term.sql,)


def _tags_of(connection: sqlite3.Connection, runs: list[int]) -> dict[int, dict[str, str]]:
    """The tags of runs, by their numbers."""
    where, values = _only(runs)
    joined = "tags AS t JOIN names AS n ON n.number = t.name JOIN runs ON runs.run = t.run"
    sql = f"SELECT t.run, n.name, t.text FROM {joined}{where} ORDER BY n.name"
    found: dict[int, dict[str, str]] = {}
    for run, name, text in connection.execute(sql, values):
        found.setdefault(run, {})[name] = text
    return found


def _value(kind: str, row: tuple[Any, ...], at: int) -> Any:
    if kind == "metric":
        return None if not row[at] else math.nan if row[at + 1] is None else row[at + 1]
    if kind == "either":
        number, text = row[at], row[at + 1]
        if number is not None and text is not None:
            return int(number) if re.fullmatch(r"-?\d{1,15}", text) else number
        return text
    return row[at].decode("utf-8", "backslashreplace") if isinstance(row[at], bytes) else row[at]


# --- shown -----------------------------------------------------------------------------------------------------------


def table(answer: Answer) -> str:
    """The answer for a terminal."""
    lines = [[column.upper() if column in FACTS else one_line(column) for column in answer.columns]]
    for row in answer.rows:
        lines.append([_cell(kind, value) for kind, value in zip(answer.kinds, row, strict=True)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [kind in ("number", "metric", "either", "duration") for kind in answer.kinds]
    made = []
    for line in lines:
        cells = zip(line, widths, right, strict=True)
        made.append("  ".join(cell.rjust(width) if side else cell.ljust(width) for cell, width, side in cells).rstrip())
    return "\n".join(made) + "\n"


def as_json(answer: Answer) -> str:
    """One JSON array, an object a run; times in ISO 8601, durations in seconds, what is not finite as a text."""
    rows = [
        {name: _plain_value(kind, value) for name, kind, value in zip(answer.columns, answer.kinds, row, strict=True)}
        for row in answer.rows
    ]
    return json.dumps(rows, allow_nan=False) + "\n"


def everything_as_json(connection: sqlite3.Connection, answer: Answer) -> str:
    """As `as_json`, with all that the catalogue knows of each run: facts, `tags`, `hyperparameters`, `metrics`."""
    kinds = [FACTS[name].kind for name in COLUMNS]
    named = ", ".join(f'"{name}"' for name in COLUMNS)
    told: dict[int, dict[str, Any]] = {}
    for run, *values in connection.execute(f"SELECT run, {named} FROM runs"):
        plain = {
            name: _plain_value(kind, _value(kind, (value,), 0))
            for name, kind, value in zip(COLUMNS, kinds, values, strict=True)
        }
        told[run] = {**plain, "tags": {}, "hyperparameters": {}, "metrics": {}}
    joined = "AS x JOIN names AS n ON n.number = x.name ORDER BY n.name"
    for run, name, text in connection.execute(f"SELECT run, n.name, text FROM tags {joined}"):
        told[run]["tags"][name] = text
    for run, name, number, text in connection.execute(f"SELECT run, n.name, x.number, text FROM hps {joined}"):
        told[run]["hyperparameters"][name] = _plain_value("", _value("either", (number, text), 0))
    fields = ("count", "first", "last", "min", "max")
    for run, name, *values in connection.execute(
        f"SELECT run, n.name, count, first, last, least, most FROM metrics {joined}"
    ):
        absent = None if values[0] == 0 else math.nan
        last = math.nan if values[2] is None else values[2]
        held = [values[0], *(absent if value is None else value for value in (values[1], last, *values[3:]))]
        told[run]["metrics"][name] = {field: _plain_value("", value) for field, value in zip(fields, held, strict=True)}
    return json.dumps([told[run] for run in answer.runs], allow_nan=False) + "\n"


def as_csv(answer: Answer) -> str:
    """Comma-separated values with a line of names; what a run does not have is empty."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        cells = [_plain_value(kind, value) for kind, value in zip(answer.kinds, row, strict=True)]
        writer.writerow([_tags(cell) if isinstance(cell, dict) else "" if cell is None else cell for cell in cells])
    return out.getvalue()


def _cell(kind: str, value: Any) -> str:
    if value is None:
        return "-"
    if kind == "time":
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if kind == "duration":
        return duration(value)
    if kind == "tags":
        return shorten(one_line(_tags(value)), WIDEST) or "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return shorten(one_line(str(value)), WIDEST)


def _plain_value(kind: str, value: Any) -> Any:
    if kind == "time" and value is not None:
        try:
            return datetime.fromtimestamp(value, timezone.utc).isoformat(timespec="milliseconds")
        except (ValueError, OverflowError):  # in the year 10000
            return None
    return finite(value)


def _tags(tags: dict[str, str]) -> str:
    return ", ".join(f"{name}={text}" if text else name for name, text in tags.items())
