"""toolkit/trainshed/__init__.pyi: the public functions with every field of the tables as a typed argument, for editors."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator

from support.paths import TOOLKIT
from support.sources import tree_of
from trainshed.runner.job.fields import FIELDS, Field
from trainshed.runner.job.places import BUILT_IN
from trainshed.studio.steps import steps_file
from trainshed.studio.tune import tuning_file

PATH = TOOLKIT / "trainshed/__init__.pyi"
HOMES = ("checkpoint.in_place", "runner.api", "studio.python_api")
_HEAD = '''\
"""What is loaded late, with its types. Made from the tables of fields: python tests/support/doc_tables.py"""

# ruff: noqa
# fmt: off
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

'''
_KINDS = {
    "text": "str", "whole": "int", "number": "float", "size": "str | int", "duration": "str | float",
    "durations": "str | Sequence[str | float]", "switch": "bool", "words": "Sequence[str]", "path": "str | PathLike[str]",
    "folder": "str | PathLike[str]", "any": "Any", "list": "Sequence[Any]",
}  # fmt: skip
# Fields that Python gives otherwise than a file does.
_OTHERS = {
    "program": "_Program", "run": "What", "after": "str | Sequence[str]", "tune": "str | Mapping[str, Any]",
    "search": "Mapping[str, Any] | str",
    "objective": "str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]",
}  # fmt: skip
_FIELDS = {
    "make_job": FIELDS,
    "run": FIELDS,
    "tune": tuple(row for row in tuning_file.FIELDS if row.name != "job"),
    "steps": tuple(row for row in steps_file.FIELDS if row.name != "params"),
}


def stub_text() -> str:
    """The whole stub."""
    records: dict[str, str] = {}
    faces = {home: tree_of(TOOLKIT / f"trainshed/{home.replace('.', '/')}.py") for home in HOMES}
    functions = [
        _function(node, _FIELDS[node.name], records)
        for tree in faces.values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in _FIELDS
    ]
    names = [f"from .{home} import {name} as {name}\n" for home, name in _names(faces) if name not in _FIELDS]
    names += [
        "from trainshed.runner.job.job import Job as _Job\n",
        "\n__version__: str\n",
        "_Program = str | PathLike[str] | Callable[..., Any]\n",
    ]
    names.append("What = _Program | Mapping[str, Any]\n\n")
    return _HEAD + "".join([*names, *records.values(), *functions]).rstrip() + "\n"


def _names(faces: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    import trainshed

    for home, tree in faces.items():
        here = {one.name for one in tree.body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}
        yield from ((home, name) for name in trainshed.__all__ if name in here)


def _function(node: ast.FunctionDef, fields: Iterable[Field], records: dict[str, str]) -> str:
    """A function whose `**fields` are arguments of their own."""
    own = node.args
    first = [f"    {one.arg}: {_annotation(one)} = ...,\n" for one in own.posonlyargs]
    named = [f"    {one.arg}: {_annotation(one)} = ...,\n" for one in own.kwonlyargs]
    given = [f"    {row.name}: {_type(row, records)} | None = ...,  # {row.help}\n" for row in fields]
    returns = re.sub(r"\bJob\b", "_Job", ast.unparse(node.returns)) if node.returns else "Any"
    arguments = "".join([*first, "    /,\n    *,\n", *named, *given])
    return f"def {node.name}(\n{arguments}) -> {returns}: ...\n"


def _annotation(one: ast.arg) -> str:
    said = ast.unparse(one.annotation) if one.annotation else "Any"
    return re.sub(r"\bJob\b", "_Job", said.replace("os.PathLike", "PathLike"))


def _type(row: Field, records: dict[str, str]) -> str:
    if row.name in _OTHERS:
        return _OTHERS[row.name]
    if row.kind == "choice":
        words = _words(row.choices)
        return f"{words} | str" if row.added else f"{words} | bool" if "true" in row.choices else words
    if row.kind == "record":
        short = "bool" if row.short == "true" else _type(row.row(row.short), records) if row.short else ""
        return " | ".join(filter(None, (short, _record(row, records))))
    if row.kind == "mapping":
        return _mapping(row, records)
    return f"{_KINDS[row.kind]} | {_words(row.choices)}" if row.choices else _KINDS[row.kind]


def _mapping(row: Field, records: dict[str, str]) -> str:
    if row.of == "any" and (not row.rows or BUILT_IN[row.name].open_fields):
        return "Mapping[str, Any]"
    if row.of == "any":
        return _record(row, records)
    short = f"{_type(row.row(row.short), records)} | " if row.short else "str | float | bool | " if row.of == "text" else ""
    inner = _record(row, records) if row.rows else ""
    made = f"Mapping[str, {(short + inner).removesuffix(' | ')}]"
    return f"{made} | Sequence[Mapping[str, str]]" if row.pair else made


def _record(row: Field, records: dict[str, str]) -> str:
    """The name of a record's type, which `records` gets; two records of one name are told apart by a number."""
    body = "".join(f'        "{one.name}": {_type(one, records)} | None,  # {one.help}\n' for one in row.rows)
    base = "_" + row.name.title().replace("_", "")
    for number in range(1, 9):
        name = base if number == 1 else f"{base}{number}"
        text = f'{name} = TypedDict(\n    "{name}",\n    {{\n{body}    }},\n    total=False,\n)\n'
        if records.setdefault(name, text) == text:
            return name
    raise LookupError(base)


def _words(choices: tuple[str, ...]) -> str:
    return f"Literal[{', '.join(map(json.dumps, choices))}]"
