"""From names and trees to SQL over the catalogue's tables (`tables.py`). Names and values are bound, never part of the text.

A comparison with what a run does not have is false, whichever the comparison; `not` of it is true.
"""

from __future__ import annotations

from trainshed.base.errors import did_you_mean, some
from trainshed.base.record import Record

from .language import All, Among, Any_, Compare, ExpressionError, Has, Missing, Name, Node, Not, NotANumber, Value
from .metric_direction import better
from .tables import FACTS, STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import NoReturn

MOST_NAMES = 40  # of one question: SQLite joins 64 tables at most
_COLUMN = {"": "last", "last": "last", "first": "first", "min": "least", "max": "most", "count": "count"}


class Term(Record):
    """A name as SQL.

    kind: `number`, `text`, `duration`, `time`, `tags`, or `either` of a hyperparameter, which is a number or a text.
    sql: the value; of `either` the number, and `text` the text.
    there: true where the run has it.
    """

    kind: str
    sql: str
    there: str
    text: str = ""


class Question:
    """Terms and conditions over the same joined rows.

    Attributes:
        joins, join_values: what stands between `FROM runs` and `WHERE`, and what is bound in it.
        names: the names that were asked for, in their order.
    """

    def __init__(self, connection: sqlite3.Connection, where: str = "--where") -> None:
        self._connection = connection
        self.where = where
        self.joins = ""
        self.names: list[Name] = []
        self.join_values: list[object] = []
        self._held: dict[tuple[str, str], str] = {}

    # --- names --------------------------------------------------------------------------------------------------------

    def term(self, name: Name) -> Term:
        """What a name stands for. Raises ExpressionError where there is nothing of that name, or are two things."""
        self.names.append(name)
        kind = name.prefix or self._kind_of(name)
        if kind == "run":
            return self._fact(name)
        if name.part and kind != "metric":
            raise ExpressionError(f"{self.where}: {name.part}() is of metrics, and {name.name} is not a metric")
        self._known(name, kind)
        if kind == "tag":
            alias = self._join("tags", name.name)
            return Term("text", f"{alias}.text", f"{alias}.run IS NOT NULL")
        if kind == "hp":
            alias = self._join("hps", name.name)
            return Term("either", f"{alias}.number", f"{alias}.run IS NOT NULL", f"{alias}.text")
        part = _better(name, self.where) if name.part == "best" else name.part
        alias = self._join("metrics", name.name)
        there = f"{alias}.run IS NOT NULL"
        if part in ("first", "min", "max"):  # of a metric that is known by its last value alone
            there = f"({there} AND {alias}.count > 0)"
        return Term("number", f"{alias}.{_COLUMN[part]}", there)

    def _fact(self, name: Name) -> Term:
        if name.name not in FACTS:
            near = did_you_mean(name.name, FACTS) or f"there are {', '.join(FACTS)}"
            raise ExpressionError(f"{self.where}: runs have no {name.name!r}", hint=near)
        if name.part:
            raise ExpressionError(f"{self.where}: {name.part}() is of metrics, and {name.name} is not a metric")
        column = f'runs."{name.name}"'
        return Term(FACTS[name.name].kind, column, f"{column} IS NOT NULL")

    def _kind_of(self, name: Name) -> str:
        """What a name without a prefix is: a fact, else a metric, hyperparameter or tag that some run has."""
        if name.name in FACTS and not name.part:
            return "run"
        kinds = [kind for kind in ("metric", "hp") if self._is_known(kind, name.name)]
        if name.part and "metric" in kinds:
            return "metric"
        if len(kinds) > 1:
            raise ExpressionError(
                f"{self.where}: {name.name!r} is a metric and a hyperparameter",
                hint=f"write {name.replace(prefix='metric')} or {name.replace(prefix='hp')}",
            )
        if kinds or self._is_known("tag", name.name):
            return kinds[0] if kinds else "tag"
        return "metric" if name.part else ""

    def _known(self, name: Name, kind: str) -> None:
        if kind and self._is_known(kind, name.name):
            return
        what = {"metric": "metric", "hp": "hyperparameter", "tag": "tag"}.get(kind, "metric, hyperparameter, tag or fact")
        names = self._connection.execute("SELECT DISTINCT name FROM names WHERE kind = ? OR ? = ''", (kind, kind))
        known = [name for (name,) in names]
        near = did_you_mean(name.name, [*known, *(() if kind else FACTS)])
        hint = near or (f"there are {some(known, 20)}" if known else f"no run has a {what}" if kind else "")
        state = next((one for one in STATES if one.lower() == name.name.lower()), "")
        if state and not kind:
            hint = f'a text stands in quotes: "{state}"'
        elif not near and not kind:
            hint += "; a text stands in quotes"
        raise ExpressionError(f"{self.where}: no run has a {what} {name.name!r}", hint=hint)

    def _is_known(self, kind: str, name: str) -> bool:
        return self._number(kind, name) is not None

    def _number(self, kind: str, name: str) -> int | None:
        """The number of a name that a run has."""
        row = self._connection.execute("SELECT number FROM names WHERE kind = ? AND name = ?", (kind, name)).fetchone()
        return None if row is None else int(row[0])

    def _join(self, table: str, name: str) -> str:
        kind = {"metrics": "metric", "hps": "hp", "tags": "tag"}[table]
        alias = self._held.get((table, name))
        if alias is None:
            if len(self._held) >= MOST_NAMES:
                raise ExpressionError(f"{self.where}: more than {MOST_NAMES} names are asked for at once")
            alias = self._held[table, name] = f"j{len(self._held)}"
            self.joins += f" LEFT JOIN {table} AS {alias} ON {alias}.name = ? AND {alias}.run = runs.run"
            self.join_values.append(self._number(kind, name))
        return alias

    # --- conditions ---------------------------------------------------------------------------------------------------

    def condition(self, node: Node) -> tuple[str, list[object]]:
        """(SQL, what is bound in it) of a tree. Raises ExpressionError."""
        if isinstance(node, (All, Any_)):
            made = [self.condition(part) for part in node.parts]
            word = " AND " if isinstance(node, All) else " OR "
            return "(" + word.join(sql for sql, _ in made) + ")", [value for _, values in made for value in values]
        if isinstance(node, Not):
            sql, values = self.condition(node.inner)
            return f"(NOT {sql})", values
        if isinstance(node, Missing):
            return self._missing(node.name), []
        if isinstance(node, NotANumber):
            term = self.term(node.name)
            if term.kind != "number" or term.sql.startswith("runs."):
                raise ExpressionError(f"{self.where}: `is nan` is asked of metrics, and {node.name.name} is not a metric")
            return f"({term.there} AND {term.sql} IS NULL)", []
        if isinstance(node, Has):
            if self._is_tags(node.name):
                return self._has("=", node.value)
            raise ExpressionError(f"{self.where}: a value is in `tags`, or a name in values: {node.name.name} in (1, 2)")
        if isinstance(node, Among):
            made = [self._compare(Compare("=", node.name, value)) for value in node.values]
            return "(" + " OR ".join(sql for sql, _ in made) + ")", [value for _, values in made for value in values]
        return self._compare(node)

    def _missing(self, name: Name) -> str:
        if self._is_tags(name):
            return "(NOT EXISTS (SELECT 1 FROM tags AS t WHERE t.run = runs.run))"
        return f"(NOT {self.term(name).there})"

    def _is_tags(self, name: Name) -> bool:
        return name.name == "tags" and name.prefix in ("", "run")

    def _compare(self, node: Compare) -> tuple[str, list[object]]:
        if self._is_tags(node.left) and isinstance(node.right, Value):
            return self._has(node.op, node.right)
        left = self.term(node.left)
        if isinstance(node.right, Name):
            return self._compare_names(node, left, self.term(node.right))
        value = node.right
        if node.op in ("~", "like"):
            text = left.text or left.sql
            if left.kind not in ("text", "either"):
                self._refuse(node.left, left, value)
            return _true(f"{text} {'REGEXP' if node.op == '~' else 'LIKE'} ?"), [value.value]
        if left.kind == "either":
            return self._compare_either(node, left, value)
        if left.kind == "text":
            if value.kind != "text":
                self._refuse(node.left, left, value)
            if node.left.name == "state" and left.sql == 'runs."state"':
                value = self._state(value)
            return _true(f"{left.sql} {node.op} ?"), [value.value]
        if left.kind == "time":
            return self._compare_time(node, left, value)
        if value.kind not in ("number", "duration") or (value.kind == "duration" and left.kind == "number"):
            self._refuse(node.left, left, value)
        return _true(f"{left.sql} {node.op} ?"), [value.value]

    def _compare_either(self, node: Compare, left: Term, value: Value) -> tuple[str, list[object]]:
        if value.kind in ("number", "duration"):
            return _true(f"{left.sql} {node.op} ?"), [value.value]
        if value.kind == "truth":
            if node.op not in ("=", "!="):
                raise ExpressionError(f"{self.where}: {node.left.name} can be = or != {str(value.value).lower()}")
            return _true(f"lower({left.text}) {node.op} ?"), [str(value.value).lower()]
        if value.kind != "text":
            self._refuse(node.left, left, value)
        return _true(f"{left.text} {node.op} ?"), [value.value]

    def _compare_time(self, node: Compare, left: Term, value: Value) -> tuple[str, list[object]]:
        if value.kind == "time":
            return _true(f"{left.sql} {node.op} ?"), [value.value]
        if value.kind != "day":
            self._refuse(node.left, left, value)
        inside = f"{left.sql} >= ? AND {left.sql} < ?"
        if node.op == "=":
            return _true(f"({inside})"), [value.value, value.until]
        if node.op == "!=":
            return _true(f"NOT ({inside})"), [value.value, value.until]
        bound = value.until if node.op in (">", "<=") else value.value  # a day is all its seconds
        return _true(f"{left.sql} {'>=' if node.op[0] == '>' else '<'} ?"), [bound]

    def _compare_names(self, node: Compare, left: Term, right: Term) -> tuple[str, list[object]]:
        kinds = {left.kind, right.kind}
        if node.op in ("~", "like") or "tags" in kinds:
            raise ExpressionError(f"{self.where}: {node.left} {node.op} is followed by a text in quotes")
        if kinds == {"either"}:
            numbers = f"({left.sql} IS NOT NULL AND {right.sql} IS NOT NULL AND {left.sql} {node.op} {right.sql})"
            texts = f"({left.sql} IS NULL AND {right.sql} IS NULL AND {left.text} {node.op} {right.text})"
            return _true(f"({numbers} OR {texts})"), []
        if kinds == {"either", "text"}:
            return _true(f"{left.text or left.sql} {node.op} {right.text or right.sql}"), []
        if len(kinds - {"either"}) > 1 and kinds - {"either"} != {"number", "duration"}:
            raise ExpressionError(
                f"{self.where}: {node.left} and {node.right} cannot be compared: {left.kind}, {right.kind}"
            )
        return _true(f"{left.sql} {node.op} {right.sql}"), []

    def _has(self, op: str, value: Value) -> tuple[str, list[object]]:
        ops = {"=": "= ?", "!=": "= ?", "~": "REGEXP ?", "like": "LIKE ?"}
        if op not in ops or value.kind != "text":
            raise ExpressionError(
                f"{self.where}: tags are asked for by their names", hint='"best" in tags, or tag.stage = "final"'
            )
        inner = (
            "EXISTS (SELECT 1 FROM tags AS t JOIN names AS n ON n.number = t.name"
            f" WHERE t.run = runs.run AND n.name {ops[op]})"
        )
        return f"(NOT {inner})" if op == "!=" else f"({inner})", [value.value]

    def _state(self, value: Value) -> Value:
        """A state in its own spelling. Raises ExpressionError for one that no run can have."""
        named = {state.lower(): state for state in STATES}
        found = named.get(str(value.value).lower())
        if found is None:
            near = did_you_mean(str(value.value), STATES) or f"there are {', '.join(STATES)}"
            raise ExpressionError(f"{self.where}: {value.value!r} is not a state of runs", hint=near)
        return value.replace(value=found)

    def _refuse(self, name: Name, term: Term, value: Value) -> NoReturn:
        wants = {
            "number": "a number", "text": "a text, which is compared with a text in quotes",
            "duration": "a duration, like 90s, 15m or 1h30m",
            "time": "a time, like 2026-11-21, 2026-11-21T10:15 or 3d ago",
            "either": "a number or a text",
        }[term.kind]  # fmt: skip
        given = "a day" if value.kind == "day" else f"a {value.kind}"
        raise ExpressionError(f"{self.where}: {name.name} is {wants}, and is compared with {given}")


def _true(sql: str) -> str:
    """False where something is missing: SQL says NULL, whose negation is not true either."""
    return f"coalesce({sql}, 0)"


def _better(name: Name, where: str) -> str:
    """The part of a metric that is its best. Raises ExpressionError where its name does not say which."""
    part = better(name.name)
    if not part:
        raise ExpressionError(
            f"{where}: whether less or more of {name.name!r} is better is not known",
            hint=f"write {name.replace(part='min')} or {name.replace(part='max')}",
        )
    return part
