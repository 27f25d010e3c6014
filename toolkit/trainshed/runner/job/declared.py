"""Holds a job against what its program declares of itself, before anything is fetched or started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainshed.algorithms import ENDING
from trainshed.contract.hyperparameters import is_reserved
from trainshed.contract.wire.variables import ENTRYPOINTS

from .checker import Checker
from .job import Job


def check_declared(fields: Checker, job: Job, environ: Mapping[str, str]) -> None:
    """Problems go to `fields`. Nothing happens where the program declares nothing, or is not on this machine.

    Raises:
        DeclarationError: the declaration itself is wrong.
    """
    name = os.path.splitext(job.program)[0] + ENDING
    places = (job.source_dir, environ.get(ENTRYPOINTS, ""))
    path = next((path for place in places if place and os.path.isfile(path := os.path.join(place, name))), "")
    if not job.program or not path:
        return
    from trainshed.algorithms.checking import check_channels, check_hyperparameters
    from trainshed.algorithms.declaration import read

    algorithm = read(path)
    user = {name: value for name, value in job.hyperparameters.items() if not is_reserved(name)}
    for problem in check_hyperparameters(algorithm, user, "hyperparameters"):
        _add(fields, "hyperparameters", problem)
    for problem in check_channels(algorithm, {one.name: one for one in job.channels}, user, "channels"):
        _add(fields, "channels", problem)


def _add(fields: Checker, name: str, problem: object) -> None:
    """With the line of the job file."""
    from trainshed.base.errors import Problem

    assert isinstance(problem, Problem)
    node = fields.values.get(name)
    inner = node.value if node is not None and isinstance(node.value, dict) else {}
    found = inner.get(problem.field.partition(".")[0]) or node
    where = getattr(found, "where", "") or fields.origin
    fields.problems.append(problem.replace(file=where, field=f"{name}.{problem.field}"))
