"""JSON schemas (draft 2020-12) of what people write: job files, tuning files, pipelines, declarations of programs.

For editors and other programs. Made from the tables of fields; the readers check more than a schema can say. The YAML
language server shows `errorMessage` in place of its own words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from trainshed.algorithms.declaration import DIRECTIONS, MODES
from trainshed.algorithms.values import SCALES, TYPES
from trainshed.base.wings import module_of_wing

from .field_parsers import LONGEST_REGEX
from .fields import FIELDS, Field
from .places import BUILT_IN

_TEXT = {"type": ["string", "number", "boolean"]}
_ITEM = {"type": ["string", "number", "boolean", "null"]}
_PATH = {"type": "string", "minLength": 1}
_NUMBER = r"\d{1,15}(\.\d{1,9})?"
_DURATION_TEXT = r"\d+(\.\d+)?(s|m|min|h)?"
_SIZE = {"type": ["string", "integer"], "pattern": rf"^\s*{_NUMBER}\s*[kKmMgGtT]?([iI]?[bB])?\s*$"}
_DURATION = {
    "type": ["string", "number"],
    "pattern": rf"^\s*{_DURATION_TEXT}(\s*,\s*{_DURATION_TEXT})*\s*$",
}
_ONE_DURATION = {"type": ["string", "number"], "pattern": rf"^\s*{_DURATION_TEXT}\s*$"}


_LINK = {"type": "string", "pattern": r"\$\{"}  # a value of another step
KINDS = ("job", "tune", "steps", "algorithm")


def schema(kind: str = "job") -> dict[str, Any]:
    """The schema as a JSON value.

    Args:
        kind: of `KINDS`.

    Raises:
        MissingWingError: of a tuning file and of a pipeline, where the studio is not installed.
    """
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"trainshed {kind}"}
    return {**head, **_SCHEMAS[kind]()}


def text(kind: str = "job") -> str:
    """The schema as it is published. Raises as `schema`."""
    return json.dumps(schema(kind), indent=1) + "\n"


def _job() -> dict[str, Any]:
    needs = [{"required": [name]} for name in ("program", "image", "source_dir")]
    return {**_record(FIELDS), "anyOf": needs}


def _tune() -> dict[str, Any]:
    rows = module_of_wing("studio.tune.tuning_file", "the schema of a tuning file").FIELDS
    made = _record(rows)
    fields = made["properties"]
    objectives = {"type": "array", "items": {"anyOf": [{"type": "string"}, _record(rows_of(rows, "objective"))]}}
    ranges = {
        "type": "object",
        "additionalProperties": {"anyOf": [{"const": "auto"}, {"type": "array"}, _record(rows_of(rows, "search"))]},
    }
    fields["objective"] = _also(fields["objective"], {"type": "string"}, objectives)
    fields["early_stopping"] = _also(fields["early_stopping"], {"const": False})
    fields["search"] = {**_told(fields["search"]), "anyOf": [{"const": "auto"}, ranges]}
    fields["warm_start"] = _also(fields["warm_start"], {"type": "string"})
    fields["job"] = _file_or("job", "a job file, or the fields of one")
    return {**made, "$defs": {"job": _request_or(_record(FIELDS))}}


def _steps() -> dict[str, Any]:
    made = _record(module_of_wing("studio.steps.steps_file", "the schema of a pipeline").FIELDS)
    step = made["properties"]["steps"]["anyOf"][1]["additionalProperties"]["properties"]
    step["after"] = _also(step["after"], {"type": "string"})
    registered = step["register"]["properties"]
    registered |= {name: _also(registered[name], {"type": "string"}) for name in ("stage", "metrics")}
    tune = _tune()
    step["run"] = _file_or("job", "a job file, or the fields of one")
    step["tune"] = _file_or("tune", "a tuning file, or the fields of one")
    return {**made, "$defs": {"job": _with_links(tune.pop("$defs")["job"]), "tune": _with_links(tune)}}


def rows_of(rows: tuple[Field, ...], name: str) -> tuple[Field, ...]:
    """The inner fields of a field."""
    return next(row.rows for row in rows if row.name == name)


def _told(made: dict[str, Any]) -> dict[str, Any]:
    return {name: made[name] for name in ("description", "errorMessage")}


def _also(made: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    """A field that may be something else, too."""
    told = _told(made)
    rest = {name: one for name, one in made.items() if name not in told}
    return {**told, "anyOf": [*(rest["anyOf"] if rest.keys() == {"anyOf"} else [rest]), *more]}


def _file_or(name: str, words: str) -> dict[str, Any]:
    return {"description": words, "errorMessage": f"must be {words}", "anyOf": [_PATH, {"$ref": f"#/$defs/{name}"}]}


def _request_or(record: dict[str, Any]) -> dict[str, Any]:
    """Also a CreateTrainingJob request, whose fields begin with capitals."""
    return {**record, "patternProperties": {"^[A-Z]": {}}}


def _with_links(made: Any) -> Any:
    """The same, with a link to another step wherever there is a value."""
    if isinstance(made, list):
        return [_with_links(one) for one in made]
    if not isinstance(made, dict):
        return made
    found = {name: _with_links(one) for name, one in made.items()}
    return _also(found, _LINK) if "errorMessage" in found else found


def _record(rows: tuple[Field, ...]) -> dict[str, Any]:
    """A mapping of these fields and no others; null stands for an absent one."""
    made = {"type": "object", "properties": {row.name: _property(row) for row in rows}, "additionalProperties": False}
    required = [row.name for row in rows if row.required]
    return {**made, "required": required} if required else made


def _property(row: Field) -> dict[str, Any]:
    told = {"description": f"{row.help}. {row.words.capitalize()}.", "errorMessage": f"must be {row.words}"}
    made = _KINDS[row.kind](row)
    if isinstance(made.get("type"), str) and "enum" not in made:
        return {**told, **made, "type": [made["type"], "null"]}  # one type, whose message an editor shows
    if "enum" in made:
        return {**told, "enum": [*made["enum"], None]}
    return {**told, "anyOf": [{"type": "null"}, made]}


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
    if row.of == "any" and row.rows:
        return {**_record(row.rows), "additionalProperties": BUILT_IN[row.name].open_fields}
    if row.of == "any":
        return {"type": "object"}
    limit = {"maxProperties": row.most} if row.most else {}
    values: dict[str, Any] = _TEXT
    if row.name == "metric_definitions":
        values = {"type": "string", "maxLength": LONGEST_REGEX}
    elif row.of == "record":
        values = _record(row.rows)
        if row.short:
            short = row.row(row.short)
            values = {"anyOf": [_KINDS[short.kind](short), values]}
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
    "words": lambda row: {"type": "array", "items": _ITEM, **({"maxItems": row.most} if row.most else {})},
    "path": lambda _: _PATH,
    "folder": lambda _: {"type": "string"},
    "mapping": _mapping,
    "record": _record_or_short,
    "list": lambda _: {"type": "array"},
    "any": lambda _: {},
}
_SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "job": _job, "tune": _tune, "steps": _steps, "algorithm": lambda: _record(ALGORITHM_FIELDS),
}  # fmt: skip


TUNABLE = (
    Field("range", "words", "the lowest and the highest value to try", most=2),
    Field("scale", "choice", "how values lie between them", choices=SCALES),
)
HYPERPARAMETER = (
    Field("type", "choice", "what its values are", choices=TYPES),
    Field("default", "any", "its value where nobody gives one"),
    Field("required", "switch", "whether a job must give it"),
    Field("range", "words", "the lowest and the highest value; null for no bound", most=2),
    Field("choices", "words", "what may be chosen"),
    Field("or", "words", "words that may stand for a number"),
    Field("help", "text", "what it does, in one line"),
    Field("tunable", "record", "whether a search may choose it, and between what", rows=TUNABLE, short="true"),
    Field("required_with", "mapping", "needed where another hyperparameter has one of these values: a list by its name"),
    Field("changes_nothing", "text", "why it is taken and not used"),
    Field("refused", "text", "why it is refused"),
)
CHANNEL = (
    Field("required", "switch", "whether a job must have it"),
    Field("unless", "text", "a hyperparameter that makes up for it"),
    Field("aliases", "words", "other names of it"),
    Field("content_types", "words", "MIME types that it may have (default: any)"),
    Field("input_modes", "words", f"ways in which it may come: {', '.join(MODES)} (default: all)", most=len(MODES)),
    Field("help", "text", "what is in it, in one line"),
)
METRIC = (
    Field("regex", "text", "what finds it in the log, with one group, the number (default: `metric NAME=NUMBER`)"),
    Field("direction", "choice", "what is good", choices=DIRECTIONS),
    Field("help", "text", "what it measures, in one line"),
)
ALGORITHM_FIELDS: tuple[Field, ...] = (
    Field("name", "text", "its name (default: the file's)"),
    Field("program", "text", "file name of the script, beside this file (default: the file's)"),
    Field("description", "text", "what it does"),
    Field("extra", "text", "the extra of trainshed that installs what it needs"),
    Field("needs", "words", "packages that it needs"),
    Field("hyperparameters", "mapping", "its hyperparameters by name", of="record", rows=HYPERPARAMETER),
    Field("channels", "mapping", "its channels by name", of="record", rows=CHANNEL),
    Field("metrics", "mapping", "what it measures, by name", of="record", rows=METRIC),
    Field("hosts", "choice", "on how many hosts it can run (default: many)", choices=("one", "many")),
    Field("distributions", "words", "distributions that it knows (default: any)"),
)
