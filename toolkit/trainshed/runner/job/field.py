"""A field of a file that people write: a row of a table."""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal

    # mapping: names that the user chooses, values of the kind `of`. record: names that `rows` lists.
    Kind = Literal[
        "text", "choice", "whole", "number", "size", "duration", "durations", "switch", "words",
        "path", "folder", "mapping", "record", "list", "any",
    ]  # fmt: skip

DAY = 86_400  # seconds


class Field(Record):
    """One field of a file.

    name: in the job file, inside the mapping that holds it.
    kind: how its value is read and which JSON values the schema allows.
    help: one line for the page, the schema and, unless `flag_help` is given, the flag.
    default: the value where the field is absent; `clone` leaves it out.
    low, high: bounds of numbers, and of durations in seconds, both allowed.
    choices: words allowed; for a number, words allowed instead of one.
    added: the words that installed packages add to them.
    pattern: regular expression for the whole text.
    most: characters of a text, entries of a mapping or list; 0 for no limit.
    of: kind of the values of a mapping: "any" JSON value, "text", or "record" (with `rows`).
    pair: names of the two fields in the platform's form of a mapping, a list of such pairs.
    rows: fields of a record, or of a mapping's records.
    short: the inner field that a plain value stands for; "true" where `true` means an empty record.
    required: whether a record without it is wrong.
    attribute: where `Job` keeps it, dotted; "" where that takes code.
    flags: names of its flag; metavar, flag_help and group are for `--help`.
    setting: hyperparameter that hands it to `train`.
    request: its path in a CreateTrainingJob request; for a channel's field, inside the channel.
    needs_image: whether it has no meaning for processes.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    added: Callable[[], Iterable[str]] | None = None
    pattern: str = ""
    most: int = 0
    of: str = "any"
    pair: tuple[str, ...] = ()
    rows: tuple[Field, ...] = ()
    short: str = ""
    required: bool = False
    attribute: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    flag_help: str = ""
    group: Literal["job", "place", "course"] = "job"
    setting: str = ""
    request: str = ""
    needs_image: bool = False

    def row(self, name: str) -> Field:
        """The inner field of this name. Raises KeyError."""
        return {row.name: row for row in self.rows}[name]

    @property
    def words(self) -> str:
        """What it may be: `a whole number from 1 to 512`."""
        return _WORDS[self.kind](self)


def _bounded(row: Field) -> str:
    what = "a whole number" if row.kind == "whole" else "a number"
    bounds = (
        f" from {row.low:.12g} to {row.high:.12g}" if row.high < 1e12 else f" from {row.low:.12g}" if row.low >= 0 else ""
    )
    return "".join(f"{word}, or " for word in row.choices) + what + bounds


def _or_mapping(row: Field) -> str:
    if not row.short or row.kind == "mapping":
        return f"a mapping of at most {row.most} entries" if row.most else "a mapping"
    return f"{'true' if row.short == 'true' else row.row(row.short).words}, or a mapping"


_WORDS: dict[str, Callable[[Field], str]] = {
    "text": lambda row: f"a text of at most {row.most} characters" if row.most else "a text",
    "choice": lambda row: f"one of {', '.join(row.choices)}",
    "whole": _bounded,
    "number": _bounded,
    "size": lambda _: "a size, such as 8g",
    "duration": lambda _: "a time, such as 10m or 90s",
    "durations": lambda _: "times, such as 20s,1.5m",
    "switch": lambda _: "true or false",
    "words": lambda row: f"a list of at most {row.most} texts" if row.most else "a list of texts",
    "path": lambda _: "a path",
    "folder": lambda _: "a path",
    "mapping": _or_mapping,
    "record": _or_mapping,
    "list": lambda _: "a list",
    "any": lambda _: "any value",
}
