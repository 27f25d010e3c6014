"""Reads JSON objects field by field; collects all problems instead of stopping at the first."""

from __future__ import annotations

from . import quick_json
from .errors import Problem, did_you_mean, shorten
from .files import read_bytes
from .secrets import mask_broken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LIMIT = 64 << 20  # bytes; a config file beyond this is a mistake
DEEPEST = 100  # levels of nesting; more is a mistake, and recursion over it would fail
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}


def kind_of(value: Any) -> str:
    """`a list`, `a string` ...: the JSON kind of a value, for messages."""
    return "null" if value is None else _KINDS.get(type(value), "a number" if isinstance(value, float) else "an object")


def parse_json(data: bytes, file: str, problems: list[Problem], **options: Any) -> Any:
    """Returns the JSON value in `data`, or None and adds a problem. Blank data is None without a problem."""
    try:
        text = data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        problems.append(Problem(file, f"is not UTF-8 text (byte {error.start})"))
        return None
    if not text.strip("\0 \t\r\n"):  # the example containers' test folders hold empty files
        return None
    try:
        value = quick_json.loads(text, **options)
        if not nested_too_deeply(text, value):
            return value
        problems.append(Problem(file, f"is nested too deeply, in more than {DEEPEST} levels"))
    except RecursionError:
        problems.append(Problem(file, f"is nested too deeply, in more than {DEEPEST} levels"))
    except ValueError as error:
        from json import JSONDecodeError

        if not isinstance(error, JSONDecodeError):  # an integer of over 4,300 digits
            problems.append(Problem(file, f"is not usable JSON: {shorten(str(error))}"))
            return None
        line = mask_broken(text.split("\n")[error.lineno - 1])
        start = max(0, min(error.colno - 30, len(line) - 60))
        message = f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        problems.append(Problem(file, message, value=shorten(line[start : start + 60], 60)))
    return None


def nested_too_deeply(text: str, value: Any) -> bool:
    """Returns whether the JSON value that `text` spells has more than `DEEPEST` levels of lists and objects."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def read_json(path: str, problems: list[Problem], **options: Any) -> Any:
    """Returns the JSON value in a file; None if it is absent or blank, None and a problem if it is unreadable."""
    try:
        data = read_bytes(path, LIMIT)
    except PermissionError:
        problems.append(
            Problem(path, "cannot be read by this user", suggestion="chmod -R a+rX the folder, or run as its owner")
        )
        return None
    except (OSError, ValueError) as error:
        problems.append(Problem(path, f"cannot be read: {getattr(error, 'strerror', None) or error}"))
        return None
    return None if data is None else parse_json(data, path, problems, **options)


_BOM = b"\xef\xbb\xbf"  # byte order mark; the codec utf-8-sig is a module of its own, slow to load


class Fields:
    """One JSON object. Each method returns a field, or its default and adds a problem."""

    def __init__(self, value: Any, file: str, problems: list[Problem], prefix: str = "") -> None:
        self.file = file
        self.problems = problems
        self.prefix = prefix
        if value is not None and not isinstance(value, dict):
            self.problem("", value, f"must be an object, not {kind_of(value)}")
        self.values: dict[str, Any] = value if isinstance(value, dict) else {}

    def problem(self, name: str, value: Any, message: str, suggestion: str = "") -> None:
        """Adds a problem with a field of this object."""
        field = f"{self.prefix}{name}" if name else self.prefix.rstrip(".")
        text = "" if value is None else value if isinstance(value, str) else repr(value)
        self.problems.append(
            Problem(self.file, message, ascii_safe(shorten(field, 60)), ascii_safe(shorten(text)), suggestion)
        )

    def text(self, name: str, default: str = "") -> str:
        """Returns a string; numbers are converted."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            self.problem(name, value, f"must be a string, not {kind_of(value)}")
            return default
        if not printable(value):
            self.problem(name, value, "contains a NUL character or an unpaired surrogate")
            return default
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """Returns one of the choices, ignoring case; a problem suggests the nearest."""
        choices = list(choices)
        value = self.text(name, default)
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        self.problem(name, value, f"must be one of {', '.join(choices)}", did_you_mean(value, choices))
        return default

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a list of distinct strings."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and printable(item) for item in value):
            self.problem(name, value, "must be a list of strings")
            return ()
        if len(set(value)) != len(value):
            seen: set[str] = set()
            repeated = next(item for item in value if item in seen or seen.add(item))  # type: ignore[func-returns-value]
            self.problem(name, repeated, "appears more than once")
            return tuple(dict.fromkeys(value))
        return tuple(value)

    def mapping(self, name: str) -> dict[str, Any]:
        """An object; a string that spells one is taken, too (the profiler's config has those)."""
        value = self.values.get(name)
        if isinstance(value, str):
            value = parse_json(value.encode("utf-8", "replace"), f"{self.file}: {self.prefix}{name}", self.problems)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.problem(name, value, f"must be an object, not {kind_of(value)}")
            return {}
        return value

    def items(self, name: str) -> list[Any]:
        """Returns a list of any values."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.problem(name, value, f"must be a list, not {kind_of(value)}")
            return []
        return value


def printable(text: str) -> bool:
    """Returns whether a process can be given the text: encodable as UTF-8, without NUL."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def ascii_safe(text: str) -> str:
    """Returns the text, escaped if it could not be printed."""
    return text if printable(text) else ascii(text)[1:-1]
