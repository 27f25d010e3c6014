"""From nodes (a job file, flags, or both) to a Job, with everything that is wrong at once.

Which fields there are and how their values look stands in fields.py; what they mean in meanings.py.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.contract.paths import ARCHIVES
from trainshed.contract.wire.variables import ENTRYPOINTS

from .checker import Checker, resolve
from .client_names import is_read_by_client
from .declared import check_declared
from .field_parsers import MEANINGS, usable_name
from .fields import BY_NAME, FIELDS, LOCATED, PLACES
from .groups import with_groups
from .job import S3, Job
from .nodes import Node
from .places import has_options


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


def locate_program(fields: Checker, image: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """(program for `train`, folder with the code, or an archive of it, or its `s3://` URI). Problems go to `fields`.

    Without `source_dir` the code is the script's own folder. A program that is not found here may be in the image, or
    among the ready-made ones (`TRAINSHED_ENTRYPOINTS`); then there is no code folder. A name without a path may be that of
    a program that declares itself (`trainshed algorithms`).
    """
    program = fields.text("program")
    if fields.text("source_dir").startswith(S3):
        return program, fields.text("source_dir")
    source_dir = fields.path("source_dir", "file or folder")
    if os.path.isfile(source_dir):
        if not source_dir.endswith(ARCHIVES):
            fields.problem("source_dir", f"is neither a folder nor an archive ({', '.join(ARCHIVES)})")
        return program, source_dir
    if not program:
        if not (source_dir or image or _named_elsewhere(fields)):
            fields.missing("program", "is missing", "name the script, like train.py")
        return "", source_dir
    folder = fields.values["program"].folder
    if program.startswith("-m "):
        return program, source_dir or folder
    here = resolve(program, folder)
    if not source_dir:
        found = next((path for path in (here, f"{here}.py") if os.path.isfile(path)), "")
        if found.endswith(".ipynb"):
            fields.problem("program", "is a notebook, not a script", f"jupyter nbconvert --to script {program} makes one")
        if found:
            return os.path.basename(found), os.path.dirname(found)
        source, places = "", [os.path.dirname(here)]
    else:
        inside = os.path.normpath(os.path.join(source_dir, program))
        for path in (inside, f"{inside}.py", here):
            if os.path.isfile(path) and path.startswith(source_dir.rstrip("/") + "/"):
                return os.path.relpath(path, source_dir), source_dir
        if _is_module_of_package(program, source_dir):
            return program, source_dir
        source, places = source_dir, [source_dir]
    ready = environ.get(ENTRYPOINTS, "")
    if image or (ready and any(os.path.isfile(f"{ready}/{name}") for name in (program, f"{program}.py"))):
        return program, source
    if not os.path.isdir(source_dir) and fields.node("source_dir"):
        return program, source  # the folder's own problem says enough
    declared = {} if source_dir or os.sep in program else _declared(environ)
    if program in declared:
        return os.path.basename(declared[program]), os.path.dirname(declared[program])
    if is_folder := os.path.isdir(here):
        places = [here]
    scripts = [*(name for place in places for name in _scripts(place)), *declared]
    near = did_you_mean(os.path.basename(program), scripts)
    here_are = [name for name in scripts if name not in declared]
    held = f"contains {', '.join(here_are[:6])}" if here_are else "contains no scripts"
    what = "is a folder, not a script" if is_folder else "there is no such file"
    fields.problem("program", f"{what}; {places[0]} {held}", near)
    return program, source


def _named_elsewhere(fields: Checker) -> bool:
    """Whether `train` is told of the program as the platform tells it: by a hyperparameter, or with the channel `code`."""
    held = [fields.node(name) for name in ("hyperparameters", "channels")]
    names = [node.value if node is not None and isinstance(node.value, dict) else {} for node in held]
    return "sagemaker_program" in names[0] or "code" in names[1]


def _is_module_of_package(name: str, folder: str) -> bool:
    """Whether `train` will install the folder and run the name with `-m`."""
    path = os.path.join(folder, *name.removesuffix(".py").split("."))
    package = any(os.path.isfile(f"{folder}/{file}") for file in ("setup.py", "pyproject.toml"))
    return package and (os.path.isfile(f"{path}.py") or os.path.isfile(f"{path}/__main__.py"))


def _declared(environ: Mapping[str, str]) -> dict[str, str]:
    """The programs that declare themselves: name -> path."""
    from trainshed.algorithms.shelf import every

    return {algorithm.name: algorithm.script for algorithm in every(environ)[0]}


def _scripts(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith((".py", ".sh")))
    except OSError:
        return []
