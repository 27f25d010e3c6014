"""Takes values out of nodes, one field at a time, and collects every problem instead of stopping at the first."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from trainshed.base.errors import Problem, did_you_mean
from trainshed.base.reader import ascii_safe, printable
from trainshed.base.secrets import MASK, is_secret_name
from trainshed.base.units import bytes_of
from trainshed.contract.distributions import OTHERS

from .fields import Field
from .nodes import Node

if TYPE_CHECKING:
    from typing import Any

_DURATION = re.compile(r"(\d{1,7}(?:\.\d{1,6})?)(s|m|min|h|)", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
MOST_DURATIONS = 100
MOST_BYTES = 1 << 60


class Checker:
    """One mapping being read. Each method takes a field, or its default, with a problem noted where it is wrong."""

    def __init__(self, values: dict[str, Node], problems: list[Problem], prefix: str = "", origin: str = "") -> None:
        self.values, self.problems, self.prefix, self.origin = values, problems, prefix, origin

    def missing(self, name: str, message: str, suggestion: str = "") -> None:
        """Notes a problem with a field that is not there."""
        self.problems.append(Problem(self.origin, message, f"{self.prefix}{name}", suggestion=suggestion))

    def read(self, row: Field) -> Any:
        """The field's value, as its row in the table describes it; its default where it is absent or wrong."""
        return _KINDS[row.kind](self, row)

    def inner(self, row: Field, known: Iterable[str] = ()) -> Checker:
        """The fields of a record; one that the table lacks is a problem. known: instead of the table's names."""
        made = Checker(self.mapping(row.name), self.problems, f"{self.prefix}{row.name}.")
        made.unknown(known or [inner.name for inner in row.rows])
        return made

    def problem(self, name: str, message: str, suggestion: str = "", value: str | None = None) -> None:
        """Notes a problem with a field, with its place and (unless it looks secret) its value."""
        node = self.values[name]
        shown = node.text if value is None else value
        if shown and is_secret_name(name):
            shown = MASK
        field = "" if node.where.startswith("--") else f"{self.prefix}{name}"
        self.problems.append(Problem(node.where, message, ascii_safe(field), ascii_safe(shown), suggestion))

    def unknown(self, known: Iterable[str]) -> None:
        """Notes every field whose name is none of those known."""
        known = list(dict.fromkeys(known))
        for name in self.values:
            if name not in known:
                near = did_you_mean(name.lower().replace("-", "_"), known) or f"known: {', '.join(known)}"
                self.problem(name, "is not a field of a job file" if not self.prefix else "is not known here", near)

    def node(self, name: str) -> Node | None:
        """The field as it is; None where it is absent or null."""
        node = self.values.get(name)
        return None if node is None or node.value is None else node

    def text(self, name: str, default: str = "") -> str:
        """Text; numbers and the like as they were written."""
        node = self.node(name)
        if node is None:
            return default
        if isinstance(node.value, (dict, list)):
            self.problem(name, "must be text", value="")
            return default
        if not printable(node.text):
            self.problem(name, "contains characters that are not text")
            return default
        return node.text

    def choice(
        self, name: str, choices: Iterable[str], default: str, added: Callable[[], Iterable[str]] | None = None
    ) -> str:
        """One of a few words, or one that installed packages add; the nearest one is suggested."""
        choices = list(choices)
        value = self.text(name, default)
        if value in choices or value == default:
            return value
        more = list(added()) if added else []
        if value in more:
            return value
        near = did_you_mean(value.lower(), [*choices, *more])
        others = f", {OTHERS}" if added else ""
        self.problem(name, f"must be one of {', '.join(choices)}{others}", near)
        return default

    def number(self, row: Field) -> float | None:
        """A finite number within the row's bounds."""
        node = self.node(row.name)
        if node is None:
            return row.default
        good = isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
        if not good or not row.low <= node.value <= row.high:
            self.problem(row.name, f"must be a number from {row.low:.12g} to {row.high:.12g}")
            return row.default
        return float(node.value)

    def whole(self, row: Field) -> int | str | None:
        """A whole number within the row's bounds, or one of its words."""
        node = self.node(row.name)
        if node is None:
            return row.default
        if node.value in row.choices:
            return str(node.value)
        if type(node.value) is not int or not row.low <= node.value <= row.high:
            words = "".join(f"{word} or " for word in row.choices)
            self.problem(row.name, f"must be {words}a whole number from {row.low} to {row.high}")
            return row.default
        return node.value

    def size(self, name: str) -> int | None:
        """Bytes, as `units.bytes_of` reads them."""
        node = self.node(name)
        if node is None:
            return None
        size = bytes_of(node.text) or 0
        if not 0 < size < MOST_BYTES:
            self.problem(name, "must be a size like 2g or 512m")
            return None
        return size

    def words(self, row: Field) -> tuple[str, ...]:
        """A list of texts, as commands are."""
        node = self.node(row.name)
        if node is None:
            return ()
        items = entries(node)
        if not isinstance(node.value, list) or len(items) > row.most:
            self.problem(row.name, f"must be a list of at most {row.most} words", value="")
            return ()
        numbered = {str(number): item for number, item in enumerate(items)}
        inner = Checker(numbered, self.problems, f"{self.prefix}{row.name}.")
        return tuple(scalar_texts(numbered, inner).values())

    def flag(self, name: str) -> bool:
        """true or false; false where it is absent."""
        node = self.node(name)
        if node is None:
            return False
        if not isinstance(node.value, bool):
            self.problem(name, "must be true or false")
            return False
        return node.value

    def duration(self, row: Field) -> float:
        """Seconds, of one `20`, `20s`, `1.5m` or `2h` within the row's bounds."""
        node = self.node(row.name)
        if node is None:
            return row.default
        match = None if isinstance(node.value, (dict, list, bool)) else _DURATION.fullmatch(node.text.strip())
        seconds = float(match[1]) * _SECONDS[match[2]] if match is not None else -1.0
        if not row.low <= seconds <= row.high:
            self.problem(row.name, f"must be a time like 10m or 90s, at most {row.high / 3600:g}h")
            return row.default
        return seconds

    def durations(self, name: str) -> tuple[float, ...]:
        """Seconds: one or a list of `20`, `20s`, `1.5m`, `2h`, in text separated by commas."""
        node = self.node(name)
        if node is None:
            return ()
        texts = [item.text for item in node.value] if isinstance(node.value, list) else node.text.split(",")
        seconds = []
        for text in texts:
            match = _DURATION.fullmatch(text.strip())
            if match is None or float(match[1]) * _SECONDS[match[2]] <= 0 or len(texts) > MOST_DURATIONS:
                self.problem(name, f"must be at most {MOST_DURATIONS} durations like 20s,1.5m", value=", ".join(texts)[:60])
                return ()
            seconds.append(float(match[1]) * _SECONDS[match[2]])
        return tuple(seconds)

    def mapping(self, name: str) -> dict[str, Node]:
        """Names and values."""
        node = self.node(name)
        if node is None:
            return {}
        if not isinstance(node.value, dict):
            self.problem(name, "must be a mapping of names to values")
            return {}
        return node.value

    def pairs(self, row: Field) -> list[tuple[Checker, str, str]]:
        """(checker, field with the value, name) of each entry of a mapping or of the platform's list.

        The list's entries have the two fields `row.pair`, in upper or lower case.
        """
        key, value = row.pair
        node = self.node(row.name)
        if node is None:
            return []
        if not isinstance(node.value, (dict, list)):
            self.problem(row.name, f"must be a mapping of names to values, or a list of {key} and {value}")
            return []
        pairs: list[tuple[Checker, str, str]] = []
        if isinstance(node.value, dict):
            inner = Checker(node.value, self.problems, f"{row.name}.")
            pairs = [(inner, name, name) for name in node.value]
        for item in entries(node):
            held = item.value if isinstance(item.value, dict) else {}
            lower = {name.lower(): entry for name, entry in held.items()}
            inner = Checker(lower, self.problems, f"{row.name}.")
            if not {key.lower(), value.lower()} <= lower.keys():
                self.problems.append(Problem(item.where, f"must have {key} and {value}", row.name))
                continue
            pairs.append((inner, value.lower(), inner.text(key.lower())))
        if len(pairs) > row.most:
            message = f"there are {len(pairs)}; a job has at most {row.most}"
            self.problem(row.name, message, value="")
            return []
        return pairs

    def texts(self, row: Field) -> dict[str, str]:
        """Texts by name, of a mapping or of the platform's list."""
        return {ascii_safe(name): fields.text(field) for fields, field, name in self.pairs(row)}

    def path(self, name: str, kind: str) -> str:
        """An absolute path, "" where the field is absent. kind: `folder`, `file or folder` (it must exist) or `new`."""
        text = self.text(name)
        if not text:
            return ""
        node = self.values[name]
        path = resolve(text, node.folder)
        if kind == "new":
            if os.path.exists(path) and not os.path.isdir(path):
                self.problem(name, "is not a folder")
        elif "://" in text and not text.startswith("file://"):
            self.problem(name, f"must be a {kind} on this machine; fetch it first")
        elif not os.path.exists(path):
            self.problem(name, f"there is no {path}", near_path(path))
        elif kind == "folder" and not os.path.isdir(path):
            self.problem(name, "is not a folder")
        elif not os.path.isdir(path) and not os.path.isfile(path):
            self.problem(name, "is a pipe, a socket or a device, not a file or folder")
        return path


_KINDS: dict[str, Callable[[Checker, Field], Any]] = {
    "text": lambda fields, row: fields.text(row.name, row.default),
    "choice": lambda fields, row: fields.choice(row.name, row.choices, row.default, row.added),
    "whole": Checker.whole,
    "number": Checker.number,
    "size": lambda fields, row: fields.size(row.name),
    "duration": Checker.duration,
    "durations": lambda fields, row: fields.durations(row.name),
    "switch": lambda fields, row: fields.flag(row.name),
    "words": Checker.words,
    "path": lambda fields, row: fields.path(row.name, "file or folder"),
    "folder": lambda fields, row: fields.path(row.name, "new"),
    "mapping": Checker.texts,
}


def resolve(text: str, folder: str) -> str:
    """A path as people write it (`~`, `file://`, relative to `folder`) as an absolute one."""
    return os.path.normpath(os.path.join(folder, os.path.expanduser(text.removeprefix("file://"))))


def near_path(path: str) -> str:
    """`did you mean ...?` for a path that does not exist: its first missing part against what is there."""
    parent, name = path, ""
    while parent != os.path.dirname(parent) and not os.path.exists(parent):
        parent, name = os.path.dirname(parent), os.path.basename(parent)
    try:
        return did_you_mean(name, sorted(os.listdir(parent)))
    except OSError:
        return ""


def scalar_texts(values: dict[str, Node], checker: Checker) -> dict[str, str]:
    """Names with the text of their values; lists and mappings are problems."""
    texts = {}
    for name, node in values.items():
        if isinstance(node.value, (dict, list)) or not printable(node.text):
            checker.problem(name, "must be text")
            continue
        texts[name] = node.text
    return texts


def entries(node: Node) -> list[Any]:
    """The items of a list node, else nothing."""
    return node.value if isinstance(node.value, list) else []
