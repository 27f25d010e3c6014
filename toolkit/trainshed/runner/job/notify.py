"""Who is told of a run: `notify:` of a job file, and of a tuning job's."""

from __future__ import annotations

import re

from trainshed.base.errors import did_you_mean
from trainshed.base.secrets import mask_text

from .checker import Checker
from .fields import EVENTS, NOTIFY, Field
from .job import Notify
from .nodes import Node

LONGEST_NAME = 64
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVER = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_WEB = ("webhook", "slack", "teams")


def read_notify(fields: Checker, row: Field) -> tuple[Notify, ...]:
    """The ways in the order of the file; problems are noted in `fields`."""
    nodes = fields.mapping(row.name)
    if len(nodes) > row.most:
        fields.problem(row.name, f"there are {len(nodes)}; a job has at most {row.most}", value="")
    outer = Checker(nodes, fields.problems, f"{row.name}.")
    return tuple(_way(outer, name) for name in nodes)


def _way(outer: Checker, name: str) -> Notify:
    node = outer.values[name]
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        outer.problem(name, f"is not a valid name: text of 1 to {LONGEST_NAME} characters", value="")
    short = {"to": Node(node.value, node.where, node.folder, node.text)}
    inner = Checker(node.value if isinstance(node.value, dict) else short, outer.problems, f"{outer.prefix}{name}.")
    inner.unknown(row.name for row in NOTIFY)
    way = Notify(name, **{row.name: inner.read(row) for row in NOTIFY})
    _check(outer, inner, way)
    return way


def _check(outer: Checker, inner: Checker, way: Notify) -> None:
    if bool(way.to) == bool(way.to_env):
        outer.problem(way.name, "needs one of `to` and `to_env`", value="")
    if mask_text(way.to) != way.to:
        inner.problem("to", "contains a secret", "put it into a variable, and name that: to_env", value="")
    elif way.to and way.kind in _WEB and not way.to.startswith(("https://", "http://")):
        inner.problem("to", f"is not an address of the web, which {way.kind} needs", "set kind: email, or kind: command")
    elif way.to and way.kind == "email" and "@" not in way.to:
        inner.problem("to", "is not an e-mail address")
    for event in way.on:
        if event not in EVENTS:
            near = did_you_mean(event, EVENTS) or f"there are {', '.join(EVENTS)}"
            inner.problem("on", f"{event!r} is not an event", near, value="")
    for field, text in (("to_env", way.to_env), ("login_env", way.login_env)):
        if text and not _VARIABLE.fullmatch(text):
            inner.problem(field, "is not a valid variable name", value="")
    if way.server and not _SERVER.fullmatch(way.server):
        inner.problem("server", "must be a host, or host:port")
