"""Reads a job file: YAML (hence JSON) to nodes with line numbers, without ever constructing anything but plain values.

Built on PyYAML's events, not on its loader: so numbers keep their text, each value knows its line, and tags, repeated
keys and alias bombs are problems with a place instead of surprises.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trainshed.base.errors import Problem, shorten

from .nodes import Node, scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_FILE = 1 << 20  # bytes
MOST_NODES = 20_000
DEEPEST = 32


class _Broken(Exception):
    """No tree can be made of the rest of the file; the problem has been noted."""


def read_nodes(path: str, problems: list[Problem]) -> Node | None:
    """The file's mapping; None, with a problem noted, where it has none. Problems are in the file's order."""
    shown = os.path.relpath(path) if not os.path.relpath(path).startswith("..") else path
    if path.endswith((".py", ".sh", ".ipynb")):  # a notebook would even be read: JSON is YAML
        name = os.path.basename(path)
        how = f"name it as the program of a job file: `program: {name}`"
        problems.append(Problem(shown, "is a script, not a file of YAML or JSON", suggestion=how))
        return None
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.append(Problem(shown, f"is not UTF-8 text (byte {error.start})"))
        return None
    except OSError as error:
        problems.append(Problem(shown, f"cannot be read: {error.strerror}"))
        return None
    if len(data) > LARGEST_FILE:
        problems.append(Problem(shown, "is larger than 1 MiB, the limit for a job file"))
        return None
    return parse(text, shown, os.path.dirname(os.path.abspath(path)), problems)


def parse(text: str, shown: str, folder: str, problems: list[Problem]) -> Node | None:
    """The mapping that the text spells; see `read_nodes`."""
    import yaml  # slow to load, and `--help` never needs it

    reader = _Reader(shown, folder, problems)
    try:
        node = reader.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        tab = " (indent with spaces)" if "'\\t'" in str(what) else ""
        problems.append(Problem(f"{shown}{line}", f"is not YAML: {shorten(str(what))}{tab}"))
        return None
    except _Broken:
        return None
    if node is None or node.value is None:
        problems.append(Problem(shown, "is empty"))
        return None
    if not isinstance(node.value, dict):
        problems.append(Problem(node.where, "must be a mapping of names to values, like `program: train.py`"))
        return None
    return node


def _joined(text: str) -> str:
    """Text in which JSON's two escapes for one character (`\\ud83d\\ude00`) are that character; YAML leaves them two."""
    if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Reader:
    """Turns one stream of events into a tree."""

    def __init__(self, shown: str, folder: str, problems: list[Problem]) -> None:
        self.shown, self.folder, self.problems = shown, folder, problems
        self.anchors: dict[str, Node | None] = {}

    def document(self, events: Iterator[Any]) -> Node | None:
        root: Node | None = None
        for event in events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                if root is not None:
                    raise self.broken(event, "a second document starts here; a job file describes one job")
                root = self.node(next(events), events, 0)
        return root

    def node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        """The value that starts with this event; takes the events up to its end."""
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self.alias(event)
        if event.tag is not None and event.tag != "!":
            self.problem(event, f"has the tag {shorten(event.tag, 40)}: tags are not allowed in a job file")
        if depth > DEEPEST:
            raise self.broken(event, f"is nested more than {DEEPEST} levels deep")
        if event.anchor:
            self.anchors[event.anchor] = None  # so that an alias inside itself is seen
        if kind == "ScalarEvent":
            node = self.scalar(event)
        elif kind == "SequenceStartEvent":
            node = self.sequence(event, events, depth)
        else:
            node = self.mapping(event, events, depth)
        if node.size > MOST_NODES:
            raise self.broken(event, f"expands to more than {MOST_NODES:,} values")
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def alias(self, event: Any) -> Node:
        node = self.anchors.get(event.anchor)
        if node is None:
            known = "contains itself" if event.anchor in self.anchors else "is not defined above"
            raise self.broken(event, f"the alias *{event.anchor} {known}")
        return node

    def scalar(self, event: Any) -> Node:
        # implicit[0]: written without quotes, so its meaning is to be found out.
        text = _joined(event.value)
        value = scalar(text) if event.implicit[0] and event.style is None else text
        return Node(value, self.place(event), self.folder, text)

    def sequence(self, start: Any, events: Iterator[Any], depth: int) -> Node:
        items: list[Node] = []
        size = 1
        for event in events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            items.append(self.node(event, events, depth + 1))
            size += items[-1].size
        return Node(items, self.place(start), self.folder, "", size)

    def mapping(self, start: Any, events: Iterator[Any], depth: int) -> Node:
        values: dict[str, Node] = {}
        size = 1
        for event in events:
            if type(event).__name__ == "MappingEndEvent":
                break
            key = self.key(event, events, depth)
            node = self.node(next(events), events, depth + 1)
            size += node.size
            if key in values:
                first = values[key].where.rpartition(":")[2]
                self.problem(event, f"is given twice; the first time in line {first}", key)
            elif key is not None:
                values[key] = node
        return Node(values, self.place(start), self.folder, "", size)

    def key(self, event: Any, events: Iterator[Any], depth: int) -> str | None:
        node = self.node(event, events, depth + 1)
        if isinstance(node.value, (dict, list)):
            self.problem(event, "uses a list or a mapping as a name")
            return None
        if node.text == "<<" and node.value == "<<":
            self.problem(event, "`<<` is not supported: write the values out, or use an alias for a whole value")
            return None
        if not node.text:
            self.problem(event, "has a value without a name")
            return None
        return node.text

    def place(self, event: Any) -> str:
        return f"{self.shown}:{event.start_mark.line + 1}"

    def problem(self, event: Any, message: str, field: str = "") -> None:
        self.problems.append(Problem(self.place(event), message, field))

    def broken(self, event: Any, message: str) -> _Broken:
        self.problem(event, message)
        return _Broken()
