"""Tables of docs/reference/job.md: the fields of jobs, tuning jobs, pipelines of steps, and what a job says of a place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Any

from trainshed.contract.wire.pipeline import PipelineSettings
from trainshed.runner.job import schema_json
from trainshed.runner.job.fields import FIELDS, PLACES, Field
from trainshed.runner.job.places import BUILT_IN
from trainshed.studio.steps import steps_file
from trainshed.studio.tune import tuning_file

Row = tuple[str, ...]


def table(heads: Row, rows: Iterable[Row]) -> str:
    """A Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def job_table() -> str:
    """The fields of a job file, with their flags and paths in a CreateTrainingJob request."""

    def row(name: str, one: Field) -> Row:
        flags = ", ".join(f"`{flag}`" for flag in one.flags)
        return f"`{name}`", one.words, flags, f"`{one.request}`" if one.request else "", _linked(one.help)

    heads = ("field", "value", "flag", "CreateTrainingJob", "meaning")
    return table(heads, (row(name, one) for name, one in _all(FIELDS)))


def fields_table(rows: tuple[Field, ...]) -> str:
    """Fields of another file."""
    return table(("field", "value", "meaning"), ((f"`{name}`", one.words, _linked(one.help)) for name, one in _all(rows)))


def options_table(place: type[Any], without: Iterable[str] = ()) -> str:
    """The fields of a record, as its docstring gives them."""
    texts = {name: text for name, text in item_texts(place.__doc__ or "").items() if name not in without}
    assert texts.keys() == {name for name in default_of(place) if name not in without}, f"{place} has to name all fields"
    rows = [(f"`{name}`", _spelled(default_of(place)[name]), _clean(text)) for name, text in texts.items()]
    return table(("option", "default", "meaning"), rows)


def item_texts(docstring: str) -> dict[str, str]:
    """The `name: text` paragraphs of a docstring, on one line each; `a, b: text` is of both."""
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.splitlines():
        if re.match(r" {4}\w+(, \w+)*: ", line):
            # `keep: a. drop: b.` are two on one line.
            for match in re.finditer(r"(?:^ {4}|(?<=\. ))(\w+(?:, \w+)*): (.*?)(?=(?<=\. )\w+: |$)", line):
                names = match[1].split(", ")
                texts |= dict.fromkeys(names, match[2])
        elif names and line.startswith(" " * 8):
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def default_of(kind: type[Any]) -> dict[str, Any]:
    """The fields of a record or dataclass with their defaults."""
    if not is_dataclass(kind):
        return {name: getattr(kind, name, "") for name in kind._fields}  # type: ignore[attr-defined]
    made = {one.name: one.default_factory() for one in fields(kind) if one.default_factory is not MISSING}
    return {one.name: made.get(one.name, "" if one.default is MISSING else one.default) for one in fields(kind)}


def _all(rows: tuple[Field, ...], prefix: str = "") -> Iterator[tuple[str, Field]]:
    for row in rows:
        yield f"{prefix}{row.name}", row
        if row.name not in PLACES:  # those have tables of their own
            yield from _all(row.rows, f"{prefix}{row.name}.{'NAME.' if row.kind == 'mapping' else ''}")


def _spelled(value: Any) -> str:
    if value in ("", None, (), {}):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _clean(text: str) -> str:
    return _linked(text.strip().removesuffix(".")).replace("*", "\\*").replace("<", "&lt;")


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1.md](../\1.md)", text)


TABLES: dict[str, Callable[[], str]] = {
    "job_fields": job_table,
    "tune_fields": lambda: fields_table(tuning_file.FIELDS),
    "steps_fields": lambda: fields_table(steps_file.FIELDS),
    "algorithm_fields": lambda: fields_table(schema_json.ALGORITHM_FIELDS),
    **{f"{place}_options": partial(fields_table, BUILT_IN[place].fields) for place in PLACES},
    "pipeline_settings": lambda: options_table(PipelineSettings, without=("open",)),
}  # fmt: skip
