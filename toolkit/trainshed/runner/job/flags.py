"""A job from a command line: flags, alone or on top of a job file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainshed.base.errors import Problem
from trainshed.contract.hyperparameters import SpelledFloat, decode_value

from .fields import Field, every
from .job import Job
from .nodes import Node, scalar

if TYPE_CHECKING:
    import argparse

    Groups = dict[str, argparse._ArgumentGroup]

_GROUPS = {"job": "the job", "place": "where it runs", "course": "how it goes"}


def add_groups(parser: argparse.ArgumentParser) -> Groups:
    """Adds the job file or script, and the groups of flags by their name in the table of fields."""
    parser.add_argument(
        "what",
        nargs="?",
        default="",
        metavar="JOB.yaml|SCRIPT",
        help="a job file, or the training script",
    )
    return {name: parser.add_argument_group(title) for name, title in _GROUPS.items()}


def add_flags(groups: Groups, without: tuple[str, ...] = ()) -> None:
    """Adds a flag for each field that has one, and `--no-image`.

    Args:
        without: fields that get none.
    """
    for field, row in every():
        if not row.flags or field in without:
            continue
        several: dict[str, Any] = {"action": "append", "default": []}
        groups[row.group].add_argument(
            *row.flags,
            dest=field,
            metavar=row.metavar or row.name.upper(),
            help=row.flag_help or row.help,
            **(several if row.kind == "mapping" else {}),
        )
    groups["place"].add_argument(
        "--no-image",
        action="store_true",
        help="run processes, although the job file names an image",
    )


def job_of(options: argparse.Namespace, environ: Mapping[str, str]) -> Job:
    """The job that the options of `add_groups` and `add_flags` describe.

    Raises:
        JobError: something is wrong in the job file or the flags; holds every problem.
    """
    from .read import read  # after `--help`
    from .request import is_job_file, read_file

    problems: list[Problem] = []
    values: dict[str, Node] = {}
    origin, name = "the command line", ""
    extra: dict[str, Any] = {}
    if is_job_file(options.what):
        origin = options.what
        name = os.path.splitext(os.path.basename(options.what))[0]
        values, extra = read_file(options.what, problems)
    elif options.what:
        values["program"] = _node(options.what, "the command line")
    if options.name:
        extra.pop("full_name", None)
    values = overlaid(values, options, environ, problems)
    return replace(read(values, environ, origin, name, problems), **extra)


def overlaid(
    values: dict[str, Node], options: argparse.Namespace, environ: Mapping[str, str], problems: list[Problem]
) -> dict[str, Node]:
    """The fields of a job file with what the options of `add_flags` say over them."""
    from .read import expanded

    if options.no_image:
        of_images = ("image", "entrypoint", "arguments")
        values = {field: node for field, node in values.items() if field not in of_images}
    values = expanded(values)
    _add_flags(values, vars(options), environ, problems)
    return values


def _add_flags(
    values: dict[str, Node],
    options: dict[str, Any],
    environ: Mapping[str, str],
    problems: list[Problem],
) -> None:
    """Puts what the flags say over what the file says."""
    for field, row in every():
        if not row.flags:
            continue
        if row.kind == "mapping":
            for pair in options.get(field) or ():
                _add_pair(values, row, pair, environ, problems)
        elif field == "from_run" and options.get(field) == "":  # a training that begins anew is not what was asked for
            problems.append(Problem(row.flags[0], "is empty: is a variable not set?"))
        elif options.get(field) is not None:
            _put(values, field, _node(str(options[field]), row.flags[0]))


def _add_pair(
    values: dict[str, Node],
    row: Field,
    pair: str,
    environ: Mapping[str, str],
    problems: list[Problem],
) -> None:
    """Sets one entry of a mapping from NAME=VALUE."""
    flag = row.flags[0]
    name, equals, text = pair.partition("=")
    if not equals and row.name == "environment" and name in environ:
        equals, text = "=", environ[name]
    if not equals or not name:
        problems.append(Problem(flag, "must be NAME=VALUE", value=pair))
        return
    if row.of == "any":
        value = _hyperparameter(text)
    elif row.of == "text":
        value = Node(text, flag, os.getcwd(), text)
    else:
        value = _node(text, flag)
    _put(values, f"{row.name}.{name}", value)


def _put(values: dict[str, Node], field: str, node: Node) -> None:
    outer, dot, inner = field.partition(".")
    if not dot:
        values[outer] = node
        return
    present = values.get(outer)
    held = dict(present.value) if present is not None and isinstance(present.value, dict) else {}
    if present is not None and present.value is not None and not isinstance(present.value, dict):
        return  # the file has something else there, which is a problem of its own
    if outer == "channels" and inner in held and isinstance(held[inner].value, dict):
        node = Node({**held[inner].value, "path": node}, node.where, node.folder)
    held[inner] = node
    where = present.where if present is not None else node.where
    values[outer] = Node(held, where, node.folder)


def _node(text: str, flag: str) -> Node:
    return Node(scalar(text), flag, os.getcwd(), text)


def hyperparameter_of(text: str) -> Any:
    """The value that `--hp K=text` gives."""
    return _hyperparameter(text).plain()


def _hyperparameter(text: str) -> Node:
    """JSON where it is JSON (so `"07"` in quotes is text, `[1, 2]` a list), else text."""
    value = decode_value(text)
    if isinstance(value, (dict, list)) or (isinstance(value, str) and value != text):
        return _tree(value)
    return Node(value if isinstance(value, (bool, int, SpelledFloat)) or value is None else text, "--hp", text=text)


def _tree(value: object) -> Node:
    if isinstance(value, dict):
        return Node({name: _tree(item) for name, item in value.items()}, "--hp")
    if isinstance(value, list):
        return Node([_tree(item) for item in value], "--hp")
    return Node(value, "--hp", text=str(value))
