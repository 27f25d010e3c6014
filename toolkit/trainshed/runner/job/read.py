"""From nodes (a job file, flags, or both) to a Job, with everything that is wrong at once.

Which fields there are and how their values look stands in fields.py; what they mean in meanings.py.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import JobError, Problem

from .checker import Checker
from .client_names import is_read_by_client
from .declared import check_declared
from .field_parsers import MEANINGS, usable_name
from .fields import BY_NAME, FIELDS, LOCATED, PLACES
from .groups import with_groups
from .job import Job
from .nodes import Node
from .places import has_options
from .program import locate_program


def read(
    values: dict[str, Node],
    environ: Mapping[str, str],
    origin: str,
    default_name: str,
    problems: list[Problem],
) -> Job:
    """The job that the values describe.

    Args:
        origin: the job file's name or the command's, for what is missing.
        default_name: name of a job that has none of its own; otherwise that of its program.
        problems: what is wrong with the values already.

    Raises:
        JobError: something is wrong; holds every problem, in the order of the file.
    """
    job = check(values, environ, origin, default_name, problems)
    if problems:
        raise JobError(in_order(problems))
    return job


def check(
    values: dict[str, Node],
    environ: Mapping[str, str],
    origin: str,
    default_name: str,
    problems: list[Problem],
    to_come: Container[str] | None = (),
) -> Job:
    """As `read`, but problems go to a list; the job is of use only if there are none.

    Args:
        to_come: as `check_declared` has it.
    """
    fields = Checker(expanded(values), problems, origin=origin)
    places = (*PLACES, *(name for name in fields.values if name not in BY_NAME and has_options(name)))
    fields.unknown((*BY_NAME, *places))
    image = fields.values.get("image")
    program, source_dir = locate_program(fields, image.text if image else "", environ)
    given: dict[str, Any] = {"program": program, "source_dir": source_dir}
    for row in FIELDS:
        if row.name in MEANINGS:
            given |= MEANINGS[row.name](fields, row)
        elif row.name not in (*LOCATED, *PLACES):
            given[row.name] = fields.read(row)
    given["places"] = {
        place: {name: node.plain() for name, node in fields.mapping(place).items()}
        for place in places
        if fields.node(place) is not None
    }
    job = with_groups(fields, Job(**given))
    _check_image_fields(fields, job)
    _check_spot(fields, job)
    check_declared(fields, job, environ, to_come)
    if job.name:
        return job
    stem = os.path.splitext(os.path.basename(program.removeprefix("-m ").strip()))[0]
    return replace(job, name=usable_name(default_name or stem or "job"))


def expanded(values: dict[str, Node]) -> dict[str, Node]:
    """The values with the short form of each mapping written out: `spot: true` becomes `spot: {}`."""
    made = dict(values)
    for row in FIELDS:
        node = values.get(row.name)
        if row.kind != "record" or not row.short or node is None:
            continue
        if row.short == "true":
            if isinstance(node.value, bool):
                made[row.name] = replace(node, value={} if node.value else None)
        elif node.value is not None and not isinstance(node.value, (dict, list)):
            made[row.name] = Node({row.short: node}, node.where, node.folder)
    return made


def in_order(problems: list[Problem]) -> list[Problem]:
    """Problems by the line they are in; those of flags come last."""

    def line(problem: Problem) -> tuple[bool, int]:
        number = problem.file.rpartition(":")[2]
        return problem.file.startswith("--"), int(number) if number.isdigit() else 0

    return sorted(problems, key=line)


def _check_image_fields(fields: Checker, job: Job) -> None:
    """What only containers can have, and what they cannot."""
    for row in FIELDS:
        node = fields.node(row.name)
        if row.needs_image and not job.image and node is not None and node.value is not False:
            fields.problem(row.name, "needs an image", value="")
    environment = Checker(fields.mapping("environment"), fields.problems, "environment.")
    for name in job.references if job.image else ():
        if is_read_by_client(name):
            message = "the container client reads this name itself: its value would be in the process list"
            environment.problem(name, message, value="")


def _check_spot(fields: Checker, job: Job) -> None:
    wait = job.spot.max_wait_seconds if job.spot else 0
    if wait and wait < job.max_runtime_seconds:
        spot = Checker(fields.mapping("spot"), fields.problems, "spot.")
        message = f"must not be less than max_runtime_seconds, {job.max_runtime_seconds:g}"
        spot.problem("max_wait_seconds", message)
