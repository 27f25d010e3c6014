"""Meanings of job-file fields that are more than their kind: each function returns attributes of `Job`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainshed.base.errors import Problem
from trainshed.base.patterns import compiled
from trainshed.base.reader import ascii_safe
from trainshed.base.secrets import mask_text
from trainshed.contract import hyperparameters
from trainshed.contract.paths import DEFAULT_BASE
from trainshed.contract.wire.checkpoint_every import read_every
from trainshed.contract.wire.checkpoint_memory import read_memory

from .channels import read_channels
from .checker import Checker, entries, scalar_texts
from .distribution import numbers, read_distribution
from .encode import encode
from .fields import LONGEST_NAME, Field
from .groups import read_groups
from .job import ALL_GPUS, S3, Resources, SecretReference, Spot
from .machine_names import wrong_with
from .nodes import Node
from .notify import read_notify
from .references import read_reference

LONGEST_REGEX = 500  # the platform's limit
_IMAGE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[A-Za-z0-9._-]+)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@[A-Za-z0-9:+._-]+)?"
)
_BELOW = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Attributes = dict[str, Any]


def usable_name(text: str) -> str:
    """The nearest job name to any text: letters, digits, single hyphens; at most `LONGEST_NAME`."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text)[:LONGEST_NAME].strip("-") or "job"


def _name(fields: Checker, row: Field) -> Attributes:
    name = fields.read(row)
    if name and not re.fullmatch(row.pattern, name):
        near = f"did you mean {usable_name(name)!r}?"
        fields.problem(row.name, "must be letters, digits and hyphens between them", near)
    elif len(name) > row.most:
        message = f"has {len(name)} characters; {row.most} are allowed, since the time is added"
        fields.problem(row.name, message)
    return {"name": name}


def _image(fields: Checker, row: Field) -> Attributes:
    image = fields.read(row)
    if image and not _IMAGE.fullmatch(image):
        fields.problem(row.name, "is not a valid image name")
    return {"image": image}


def _hyperparameters(fields: Checker, row: Field) -> Attributes:
    nodes = fields.mapping(row.name)
    inner = Checker(nodes, fields.problems, f"{row.name}.")
    values = {name: node.plain() for name, node in nodes.items()}
    for name, value in values.items():
        for problem in hyperparameters.check({name: encode(value)}, ""):
            inner.problem(name, problem.message, value="")
    return {"hyperparameters": values}


def _channels(fields: Checker, row: Field) -> Attributes:
    return {"channels": read_channels(fields, row)}


def _instance_groups(fields: Checker, row: Field) -> Attributes:
    return {"instance_groups": read_groups(fields, row)}


def _hosts(fields: Checker, row: Field) -> Attributes:
    """Machines, each of them checked where it stands; a flag has them with commas between."""
    node = fields.node(row.name)
    if node is not None and isinstance(node.value, str):
        parts = [Node(part.strip(), node.where, node.folder, part.strip()) for part in node.text.split(",") if part.strip()]
        fields.values[row.name] = replace(node, value=parts)
    machines = fields.read(row)
    for number, item in enumerate(entries(fields.values[row.name])) if machines else ():
        message, hint = wrong_with(machines[number])
        if message:
            fields.problems.append(Problem(item.where, message, f"{row.name}.{number}", machines[number], hint))
    if node is None or not machines:
        return {"machines": machines}
    if fields.node("instance_groups") is not None:
        fields.problem(row.name, "and instance_groups do not go together: all machines are of one kind", value="")
    instances = fields.node("instances")
    if instances is not None and instances.value != len(machines):
        fields.problem("instances", f"is not the number of `hosts`, {len(machines)}", "leave it out")
    return {"machines": machines, "instances": len(machines)}


def _distribution(fields: Checker, row: Field) -> Attributes:
    return {"distribution": read_distribution(fields, row)}


def _compiler(fields: Checker, row: Field) -> Attributes:
    """Settings of `train` (`trainshed_compiler` ...): the backend always, others where given."""
    if fields.node(row.name) is None:
        return {"compiler": {}}
    inner = fields.inner(row)
    settings = {}
    for setting in row.rows:
        if setting.name == row.short or inner.node(setting.name) is not None:
            value = inner.read(setting)
            settings[setting.setting] = {"true": "on", "false": "off"}.get(value, value)
    return {"compiler": settings}


def _environment(fields: Checker, row: Field) -> Attributes:
    nodes = fields.mapping(row.name)
    inner = Checker(nodes, fields.problems, f"{row.name}.")
    plain: dict[str, Node] = {}
    references: dict[str, SecretReference] = {}
    for name, node in nodes.items():
        if not _VARIABLE.fullmatch(name):
            inner.problem(name, "is not a valid variable name", value="")
        elif isinstance(node.value, dict):
            reference = read_reference(name, node, inner)
            if reference is not None:
                references[name] = reference
        else:
            plain[name] = node
    return {"environment": scalar_texts(plain, inner), "references": references}


def _output(fields: Checker, row: Field) -> Attributes:
    """The folder of the run, or the S3 prefix for its archives."""
    text = fields.text(row.name)
    if text.startswith(S3):
        return {"upload": text.rstrip("/")}
    return {"output": fields.read(row)}


def _checkpoints(fields: Checker, row: Field) -> Attributes:
    inner = fields.inner(row)
    path = os.path.normpath(inner.read(row.row("local_path")))
    below = path.removeprefix(f"{DEFAULT_BASE}/")
    taken = below.split("/")[0] in ("input", "output", "model", "code")
    if below == path or taken or not _BELOW.fullmatch(below):
        inner.problem(
            "local_path",
            f"must be a separate folder below {DEFAULT_BASE}, like {DEFAULT_BASE}/checkpoints",
        )
        below = "checkpoints"
    copy = row.row("copy_to")
    copy_to = inner.read(copy)
    if copy_to and not re.fullmatch(copy.pattern, copy_to):
        inner.problem("copy_to", "must be a URL like s3://bucket/run")
    elif mask_text(copy_to) != copy_to:
        message = "contains a secret; give it as a variable that the storage's package reads"
        inner.problem("copy_to", message, value="")
    every = inner.read(row.row("every"))
    try:
        read_every(every)
    except ValueError as error:
        inner.problem("every", str(error))
    return {
        "checkpoints": inner.read(row.row("folder")),
        "checkpoint_every": every,
        "checkpoint_memory": numbers(inner, "memory", lambda value: read_memory(value).plain()),
        "checkpoint_path": below,
        "checkpoint_auto": inner.read(row.row("auto")),
        "checkpoint_copy_to": copy_to,
    }


def _spot(fields: Checker, row: Field) -> Attributes:
    node = fields.node(row.name)
    if node is None:
        return {"spot": None}
    if not isinstance(node.value, dict):
        return {"spot": Spot() if fields.flag(row.name) else None}
    inner = fields.inner(row)
    return {"spot": Spot(**{setting.name: inner.read(setting) for setting in row.rows})}


def _resources(fields: Checker, row: Field) -> Attributes:
    inner = fields.inner(row)
    given = {limit.name: inner.read(limit) for limit in row.rows}
    if given["gpus"] == "all":
        given["gpus"] = ALL_GPUS
    return {"resources": Resources(**given)}


def _metric_definitions(fields: Checker, row: Field) -> Attributes:
    """A mapping name -> regex, or the platform's list of `{Name, Regex}`."""
    definitions = []
    for checker, field, name in fields.pairs(row):
        regex = checker.text(field)
        if len(regex) > LONGEST_REGEX:
            message = f"has {len(regex)} characters; the platform takes {LONGEST_REGEX}"
            checker.problem(field, message, value="")
            continue
        try:
            groups = compiled(regex).groups
        except (re.error, OverflowError, RecursionError) as error:
            checker.problem(field, f"is not a valid regular expression: {error}")
            continue
        if groups < 1:
            hint = "put the number into parentheses: loss=([0-9.]+)"
            checker.problem(field, "has no group", hint)
        definitions.append((ascii_safe(name), regex))
    return {"metric_definitions": tuple(definitions)}


def _notify(fields: Checker, row: Field) -> Attributes:
    return {"notify": read_notify(fields, row)}


MEANINGS: dict[str, Callable[[Checker, Field], Attributes]] = {
    "name": _name,
    "image": _image,
    "hyperparameters": _hyperparameters,
    "channels": _channels,
    "instance_groups": _instance_groups,
    "hosts": _hosts,
    "distribution": _distribution,
    "environment": _environment,
    "output": _output,
    "metric_definitions": _metric_definitions,
    "resources": _resources,
    "checkpoints": _checkpoints,
    "spot": _spot,
    "compiler": _compiler,
    "notify": _notify,
}
