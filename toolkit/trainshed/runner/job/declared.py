"""Holds a job against what its program declares of itself, before anything is fetched or started."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from trainshed.algorithms import declaration_of
from trainshed.contract.hyperparameters import is_reserved
from trainshed.contract.ready_programs import ready_folders
from trainshed.contract.wire.variables import ENTRYPOINTS

from .checker import Checker
from .job import Job

if TYPE_CHECKING:
    from trainshed.algorithms.declaration import Algorithm
    from trainshed.base.errors import Problem


def declared_by(job: Job, environ: Mapping[str, str]) -> Algorithm | None:
    """Returns what the job's program declares; None where it declares nothing, or is not on this machine.

    Raises:
        DeclarationError: the declaration itself is wrong.
    """
    ready = [environ.get(ENTRYPOINTS, "")] if job.image else ready_folders(environ)  # an image may have another of that name
    path = declaration_of(job.program, (job.source_dir, *ready))
    if not job.program or not path:
        return None
    from trainshed.algorithms.declaration import read

    return read(path)


def check_declared(fields: Checker, job: Job, environ: Mapping[str, str], to_come: Container[str] | None = ()) -> None:
    """Problems go to `fields`.

    Args:
        to_come: hyperparameters that the job will have when it is started; None: those with a range to tune.

    Raises:
        DeclarationError: the declaration itself is wrong.
    """
    algorithm = declared_by(job, environ)
    if algorithm is None:
        return
    from trainshed.algorithms.checking import check_channels, check_hyperparameters

    user = {name: value for name, value in job.hyperparameters.items() if not is_reserved(name)}
    if to_come is None:
        to_come = [one.name for one in algorithm.hyperparameters.values() if one.tunable]
    for problem in check_hyperparameters(algorithm, user, "hyperparameters"):
        if not (problem.field in to_come and problem.field not in user):
            _add(fields, "hyperparameters", problem)
    for problem in check_channels(algorithm, {one.name: one for one in job.channels}, user, "channels"):
        _add(fields, "channels", problem)


def _add(fields: Checker, name: str, problem: Problem) -> None:
    """With the line of the job file."""
    node = fields.values.get(name)
    inner = node.value if node is not None and isinstance(node.value, dict) else {}
    found = inner.get(problem.field.partition(".")[0]) or node
    where = getattr(found, "where", "") or fields.origin
    fields.problems.append(problem.replace(file=where, field=f"{name}.{problem.field}"))
