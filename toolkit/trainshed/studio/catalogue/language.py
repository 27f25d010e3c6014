"""The language of `trainshed ls --where`: from text to a tree. It is read here, and never evaluated as Python or SQL.

loss < 0.3 and lr > 1e-4            names and values; = != < <= > >=
state in ("Failed", "Lost")         one of several
program ~ "^train" or name like "digits%"    a regular expression; a pattern with % and _
best(accuracy) > 0.9                first, last, min, max, best, count of a metric; a name alone is its last value
metric.loss < hp.loss_limit         which of two things of one name: metric., hp., tag., run.
`eval loss` < 1, metric.`and` < 1   names with blanks or of the language itself
started > 2026-11-21 and duration < 1h30m, started > 3d ago
loss is missing, loss is nan, "best" in tags, not (...)
"""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timedelta

from trainshed.base.errors import EXIT_JOB, TrainshedError, did_you_mean, one_line
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LONGEST = 10_000  # characters of an expression
DEEPEST = 50  # parentheses and `not` inside each other
MOST_VALUES = 500  # of one `in (...)`
PREFIXES = ("metric", "hp", "tag", "run")
PARTS = ("first", "last", "min", "max", "best", "count")
_KEYWORDS = frozenset(
    {"and", "or", "not", "in", "like", "is", "null", "missing", "nan", "inf", "true", "false", "ago", "today", "yesterday"}
)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<quoted>`(?:[^`]|``)+`)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<time>\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?:Z|[+-]\d{2}:\d{2})?)?)(?![\w:.])
    | (?P<duration>(?:\d+(?:\.\d+)?(?:ms|min|[smhdw]))+)(?!\w)
    | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
    | (?P<name>[^\W\d](?:[\w./:@]|-(?=[\w]))*)
    | (?P<op><=|>=|!=|<>|==|!~|[-+]?inf\b|[=<>~(),])
    )""",
    re.VERBOSE,
)


class ExpressionError(TrainshedError):
    """An expression cannot be read, or asks for what there is not."""

    exit_code = EXIT_JOB


class Name(Record):
    """What a run has under a name.

    prefix: `metric`, `hp`, `tag`, `run`, or "" where nobody said.
    part: of a metric: one of `PARTS`; "" for its last value.
    at: the position in the text, from 0.
    """

    name: str
    prefix: str = ""
    part: str = ""
    at: int = 0

    def __str__(self) -> str:
        plain = re.fullmatch(r"[^\W\d](?:[\w./:@]|-(?=\w))*", self.name) and self.name.lower() not in _KEYWORDS
        plain = plain and (bool(self.prefix) or self.name.partition(".")[0] not in PREFIXES)
        spelled = self.name if plain else "`" + self.name.replace("`", "``") + "`"
        spelled = f"{self.prefix}.{spelled}" if self.prefix else spelled
        return f"{self.part}({spelled})" if self.part else spelled


class Value(Record):
    """A value that stands in an expression.

    kind: `number`, `text`, `truth`, `duration` (seconds), `time` (seconds since the epoch) or `day` (its first second).
    until: of a day its end.
    """

    kind: str
    value: float | str | bool
    at: int = 0
    until: float = 0.0


class Compare(Record):
    """`left op right`; op is one of = != < <= > >= ~ !~ like."""

    op: str
    left: Name
    right: Name | Value


class Among(Record):
    """`name in (values)`."""

    name: Name
    values: tuple[Value, ...]


class Has(Record):
    """`"best" in tags`."""

    value: Value
    name: Name


class Missing(Record):
    """`name is missing`: the run has nothing of that name."""

    name: Name


class NotANumber(Record):
    """`name is nan`."""

    name: Name


class Not(Record):
    """What does not hold."""

    inner: Node


class All(Record):
    """All of them hold."""

    parts: tuple[Node, ...]


class Any_(Record):
    """One of them holds."""

    parts: tuple[Node, ...]


Node = Compare | Among | Has | Missing | NotANumber | Not | All | Any_


def read_expression(text: str, where: str = "--where", now: float | None = None) -> Node:
    """The tree of an expression.

    Args:
        where: what the text was given as, for messages.
        now: seconds since the epoch that `ago` and `today` count from.

    Raises:
        ExpressionError: it cannot be read; the message says what was expected, and at which character.
    """
    reader = _Reader(text, where, time.time() if now is None else now)
    node = reader.any_of()
    reader.end()
    return node


def read_names(text: str, where: str) -> list[tuple[Name, bool]]:
    """Names with commas between them, and whether each has a minus before it (`-loss`: the largest first).

    Raises:
        ExpressionError: it cannot be read.
    """
    found: list[tuple[Name, bool]] = []
    reader = _Reader(text, where, 0.0, signs=True)
    while True:
        minus = reader.took("-")
        found.append((reader.name(), minus))
        if not reader.took(","):
            break
    reader.end()
    return found


class _Token(Record):
    kind: str
    text: str
    at: int
    end: int


class _Reader:
    """Recursive descent over the tokens; one method a rule of the grammar."""

    def __init__(self, text: str, where: str, now: float, signs: bool = False) -> None:
        self._text, self._where, self._now = text, where, now
        if len(text) > LONGEST:
            raise ExpressionError(f"{where} has {len(text):,} characters; at most {LONGEST:,} are read")
        self._depth = 0
        self._tokens = self._split(signs)
        self._next = 0

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _split(self, signs: bool) -> list[_Token]:
        found, at = [], 0
        text = self._text.rstrip()
        while at < len(text):
            sign = re.compile(r"\s*-(?=\s*[^\W\d]|\s*`)").match(text, at) if signs else None
            if sign:
                found.append(_Token("op", "-", sign.end() - 1, sign.end()))
                at = sign.end()
                continue
            match = _TOKEN.match(text, at)
            if match is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                rest = text[start:]
                if rest[0] in "\"'`":
                    self._fail(f"the quote {rest[0]} is not closed", start)
                self._fail(f"{rest.split()[0][:20]!r} is not understood", start)
            kind = str(match.lastgroup)
            found.append(_Token(kind, match[kind], match.start(kind), match.end()))
            at = match.end()
        return found

    def _fail(self, problem: str, at: int, hint: str = "") -> NoReturn:
        shown = one_line(self._text)
        details = f"  {shown}\n  {' ' * len(one_line(self._text[:at]))}^" if len(shown) < 300 else ""
        place = f"at character {at + 1}" if at < len(self._text) else "at its end"
        raise ExpressionError(f"{self._where}: {problem}, {place}", details=details, hint=hint)

    def _here(self) -> int:
        return self._tokens[self._next].at if self._next < len(self._tokens) else len(self._text)

    def _peek(self) -> _Token:
        return (
            self._tokens[self._next]
            if self._next < len(self._tokens)
            else _Token("end", "", len(self._text), len(self._text))
        )

    def took(self, *words: str) -> bool:
        """Takes the next token where it is one of these operators or keywords."""
        token = self._peek()
        if token.kind not in ("op", "name") or token.text.lower() not in words:
            return False
        self._next += 1
        return True

    def end(self) -> None:
        """Refuses what is left."""
        token = self._peek()
        if token.kind != "end":
            self._fail(f"{token.text!r} was not expected", token.at, "join comparisons with `and` or `or`")

    # --- rules --------------------------------------------------------------------------------------------------------

    def any_of(self) -> Node:
        parts = [self._all_of()]
        while self.took("or"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else Any_(tuple(parts))

    def _all_of(self) -> Node:
        parts = [self._one()]
        while self.took("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self) -> Node:
        at = self._here()
        self._depth += 1
        if self._depth > DEEPEST:
            self._fail(f"more than {DEEPEST} parentheses stand inside each other", at)
        try:
            if self.took("not"):
                return Not(self._one())
            if self.took("("):
                inner = self.any_of()
                if not self.took(")"):
                    self._fail("a closing parenthesis is missing", self._here())
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Node:
        left = self._operand()
        at = self._here()
        if self.took("is"):
            negated = self.took("not")
            named = self._named(left, at)
            if self.took("null", "missing"):
                told: Node = Missing(named)
            elif self.took("nan"):
                told = NotANumber(named)
            else:
                self._fail("`is` is followed by `missing`, `nan`, `not missing` or `not nan`", self._here())
            return Not(told) if negated else told
        negated = self.took("not")
        if self.took("in"):
            told = self._among(left, at)
            return Not(told) if negated else told
        if self.took("like"):
            told = Compare("like", self._named(left, at), self._text_value())
            return Not(told) if negated else told
        if negated:
            self._fail("`not` here is followed by `in` or `like`", self._here())
        for op in ("~", "!~"):
            if self.took(op):
                told = Compare("~", self._named(left, at), self._pattern())
                return Not(told) if op == "!~" else told
        op = self._operator(left)
        right = self._operand()
        first = self._compared(left, op, right, at)
        if self._peek().kind == "op" and self._peek().text in ("<", "<=", ">", ">="):  # 0.1 < loss < 0.3
            at = self._here()
            op = self._operator(right)
            return All((first, self._compared(right, op, self._operand(), at)))
        return first

    def _operator(self, left: Name | Value) -> str:
        token = self._peek()
        if token.kind == "op" and token.text in ("=", "==", "!=", "<>", "<", "<=", ">", ">="):
            self._next += 1
            return {"==": "=", "<>": "!="}.get(token.text, token.text)
        said = f"after {left}" if isinstance(left, Name) else "after a value"
        self._fail(
            f"a comparison is missing {said}", token.at, "= != < <= > >= ~ like in is; names with blanks stand in backticks"
        )

    def _compared(self, left: Name | Value, op: str, right: Name | Value, at: int) -> Compare:
        if isinstance(left, Name):
            return Compare(op, left, right)
        if isinstance(right, Name):
            return Compare(_FLIPPED[op], right, left)
        self._fail(
            "two values are compared; one side must be a name", at, "a name with blanks stands in backticks, not in quotes"
        )

    def _named(self, left: Name | Value, at: int) -> Name:
        if not isinstance(left, Name):
            self._fail("a name must stand before this", at)
        return left

    def _among(self, left: Name | Value, at: int) -> Node:
        if isinstance(left, Value):
            return Has(left, self.name())
        if not self.took("("):
            self._fail("the values of `in` stand in parentheses", self._here(), 'state in ("Failed", "Lost")')
        values = [self._value()]
        while self.took(","):
            values.append(self._value())
        if not self.took(")"):
            self._fail("a closing parenthesis is missing", self._here())
        if len(values) > MOST_VALUES:
            self._fail(f"`in` has {len(values)} values; at most {MOST_VALUES} are compared", at)
        return Among(left, tuple(values))

    def _operand(self) -> Name | Value:
        return self._constant() or self.name()

    def name(self) -> Name:
        """A name, with its prefix and its part."""
        token = self._peek()
        following = self._tokens[self._next + 1] if self._next + 1 < len(self._tokens) else None
        called = following is not None and following.text == "(" and following.kind == "op"
        if token.kind == "name" and called and token.text.lower() not in _KEYWORDS:
            part = token.text.lower()
            if part not in PARTS:
                hint = f"{did_you_mean(part, PARTS)} there are {', '.join(PARTS)}".strip()
                self._fail(f"there is no function {token.text!r}", token.at, hint)
            self._next += 2
            inner = self._plain_name()
            if not self.took(")"):
                self._fail("a closing parenthesis is missing", self._here())
            return inner.replace(part=part, at=token.at)
        return self._plain_name()

    def _plain_name(self) -> Name:
        token = self._peek()
        if token.kind == "quoted":
            self._next += 1
            return Name(token.text[1:-1].replace("``", "`"), at=token.at)
        if token.kind != "name":
            what = f"{token.text!r} stands" if token.text else "it ends"
            self._fail(f"a name was expected where {what}", token.at)
        if token.text.lower() in _KEYWORDS:
            self._fail(
                f"a name was expected where {token.text!r} stands",
                token.at,
                f"a metric of that name is written metric.{token.text}",
            )
        self._next += 1
        prefix, dot, rest = token.text.partition(".")
        if dot and prefix in PREFIXES:
            following = self._peek()
            if not rest and following.kind == "quoted" and following.at == token.end:
                self._next += 1
                return Name(following.text[1:-1].replace("``", "`"), prefix, at=token.at)
            if not rest:
                self._fail(f"a name is missing after {token.text!r}", token.end)
            return Name(rest, prefix, at=token.at)
        return Name(token.text, at=token.at)

    def _value(self) -> Value:
        value = self._constant()
        if value is None:
            token = self._peek()
            what = f"{token.text!r} stands" if token.text else "it ends"
            self._fail(f"a value was expected where {what}", token.at, "a text stands in quotes")
        return value

    def _text_value(self) -> Value:
        token = self._peek()
        value = self._constant()
        if value is None or value.kind != "text":
            self._fail("a text in quotes was expected", token.at)
        return value

    def _pattern(self) -> Value:
        value = self._text_value()
        try:
            re.compile(str(value.value))
        except (re.error, RecursionError, OverflowError) as error:
            self._fail(f"it is not a regular expression: {error}", value.at)
        return value

    def _constant(self) -> Value | None:
        token = self._peek()
        if token.kind == "name":
            word = token.text.lower()
            following = self._tokens[self._next + 1] if self._next + 1 < len(self._tokens) else None
            if following is not None and following.text == "(" and following.kind == "op":
                return None
            if word in ("true", "false"):
                made = Value("truth", word == "true", token.at)
            elif word == "inf":
                made = Value("number", math.inf, token.at)
            elif word == "nan":
                self._fail("nothing is equal to nan", token.at, "write `NAME is nan`")
            elif word in ("today", "yesterday"):
                day = datetime.fromtimestamp(self._now).replace(hour=0, minute=0, second=0, microsecond=0)
                made = _day(day - timedelta(days=1) if word == "yesterday" else day, token.at)
            else:
                return None
        elif token.kind == "op" and token.text in ("-inf", "+inf"):
            made = Value("number", -math.inf if token.text == "-inf" else math.inf, token.at)
        elif token.kind == "text":
            made = Value("text", re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL), token.at)
        elif token.kind == "number":
            made = Value("number", float(token.text), token.at)
        elif token.kind == "duration":
            seconds = sum(
                float(count) * _SECONDS[unit] for count, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])", token.text)
            )
            made = Value("duration", seconds, token.at)
            self._next += 1
            if self.took("ago"):
                made = Value("time", self._now - seconds, token.at)
            return made
        elif token.kind == "time":
            made = self._time(token)
        else:
            return None
        self._next += 1
        return made

    def _time(self, token: _Token) -> Value:
        try:
            if "T" not in token.text:
                return _day(datetime.fromisoformat(token.text), token.at)
            return Value("time", datetime.fromisoformat(token.text.replace("Z", "+00:00")).timestamp(), token.at)
        except (ValueError, OverflowError, OSError):
            self._fail(
                f"{token.text} is not a date", token.at, "like 2026-11-21 or 2026-11-21T10:15, in this machine's time"
            )


def _day(first: datetime, at: int) -> Value:
    return Value("day", first.timestamp(), at, (first + timedelta(days=1)).timestamp())
