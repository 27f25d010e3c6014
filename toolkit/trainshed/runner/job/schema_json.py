"""The job file's JSON schema (draft 2020-12), for editors and other programs.

Made from the table of fields. `read` checks more than a schema can say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .field_parsers import LONGEST_REGEX
from .fields import FIELDS, Field

_TEXT = {"type": ["string", "number", "boolean"]}
_PATH = {"type": "string", "minLength": 1}
_NUMBER = r"\d{1,15}(\.\d{1,9})?"
_DURATION_TEXT = r"\d+(\.\d+)?(s|m|min|h)?"
_SIZE = {"type": ["string", "integer"], "pattern": rf"^\s*{_NUMBER}\s*[kKmMgGtT]?([iI]?[bB])?\s*$"}
_DURATION = {
    "type": ["string", "number"],
    "pattern": rf"^\s*{_DURATION_TEXT}(\s*,\s*{_DURATION_TEXT})*\s*$",
}
_ONE_DURATION = {"type": ["string", "number"], "pattern": rf"^\s*{_DURATION_TEXT}\s*$"}


def schema() -> dict[str, Any]:
    """The schema as a JSON value."""
    needs = [{"required": [name]} for name in ("program", "image", "source_dir")]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "trainshed job"}
    return {**head, **_record(FIELDS), "anyOf": needs}


def text() -> str:
    """The schema as it is published."""
    return json.dumps(schema(), indent=2) + "\n"


def _record(rows: tuple[Field, ...]) -> dict[str, Any]:
    """A mapping of these fields and no others; null stands for an absent one."""
    properties = {row.name: {"description": row.help, "anyOf": [{"type": "null"}, _KINDS[row.kind](row)]} for row in rows}
    made = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [row.name for row in rows if row.required]
    return {**made, "required": required} if required else made


def _record_or_short(row: Field) -> dict[str, Any]:
    if not row.short:
        return _record(row.rows)
    inner = {"type": "boolean"} if row.short == "true" else None
    short = inner or _KINDS[row.row(row.short).kind](row.row(row.short))
    return {"anyOf": [short, _record(row.rows)]}


def _text(row: Field) -> dict[str, Any]:
    # A short text, as a name is, may look like a number.
    made: dict[str, Any] = {"type": ["string", "integer"] if row.most else "string"}
    if row.most:
        made["maxLength"] = row.most
    if row.pattern:
        made["pattern"] = f"^{row.pattern}$"
    return made


def _choice(row: Field) -> dict[str, Any]:
    # `true` without quotes is the word "true" to the reader and a boolean to an editor.
    booleans = [True, False] if "true" in row.choices else []
    return {"enum": [*row.choices, *(row.added() if row.added else ()), *booleans]}


def _whole(row: Field) -> dict[str, Any]:
    made = {"type": "integer", "minimum": row.low, "maximum": row.high}
    return {"anyOf": [{"enum": list(row.choices)}, made]} if row.choices else made


def _mapping(row: Field) -> dict[str, Any]:
    """Names that the user chooses; null stands for an absent mapping."""
    if row.of == "any":
        return {"type": "object"}
    limit = {"maxProperties": row.most} if row.most else {}
    values: dict[str, Any] = _TEXT
    if row.name == "metric_definitions":
        values = {"type": "string", "maxLength": LONGEST_REGEX}
    elif row.of == "record":
        short = row.row(row.short)
        values = {"anyOf": [_KINDS[short.kind](short), _record(row.rows)]}
    elif row.rows:
        reference = {**_record(row.rows), "minProperties": 1, "maxProperties": 1}
        values = {"anyOf": [_TEXT, {"type": "null"}, reference]}
    made = {"type": ["object", "null"], "additionalProperties": values, **limit}
    if not row.pair:
        return made
    entry = {"type": "object", "required": list(row.pair)}
    return {"anyOf": [made, {"type": "array", "items": entry, "maxItems": row.most}]}


_KINDS: dict[str, Callable[[Field], dict[str, Any]]] = {
    "text": _text,
    "choice": _choice,
    "whole": _whole,
    "number": lambda row: {"type": "number", "minimum": row.low, "maximum": row.high},
    "size": lambda _: _SIZE,
    "duration": lambda _: _ONE_DURATION,
    "durations": lambda _: {"anyOf": [_DURATION, {"type": "array", "items": _DURATION}]},
    "switch": lambda _: {"type": "boolean"},
    "words": lambda row: {"type": "array", "items": _TEXT, "maxItems": row.most},
    "path": lambda _: _PATH,
    "folder": lambda _: {"type": "string"},
    "mapping": _mapping,
    "record": _record_or_short,
}
