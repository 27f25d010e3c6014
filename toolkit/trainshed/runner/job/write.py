"""From a job to the job file that describes it: what `trainshed clone` prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.secrets import MASK
from trainshed.contract.hyperparameters import SpelledFloat
from trainshed.contract.paths import DEFAULT_BASE

from .fields import FIELDS, PLACES, Field
from .job import ALL_GPUS, PARENTS_CHANNEL, Job
from .nodes import RawText


def job_file(job: Job, comment: str) -> str:
    """The job as a job file. Masked secrets are left out, with a comment that says so.

    Args:
        comment: one line that says where the job comes from.
    """
    lines = [f"# {one_line(comment)}"]
    for name, value in job_fields(job).items():
        if not isinstance(value, dict) or not value:
            if MASK in flow(value):
                lines.append(f"# {name}: held a secret, which was not kept; write it again")
                continue
            lines.append(f"{name}: {flow(value)}")
            continue
        lines.append(f"{name}:")
        for key, item in value.items():
            if MASK in flow(item):
                remedy = "give it by reference: {env: NAME}, {file: PATH}"
                lines.append(f"  # {one_line(key)}: was a secret, which was not kept; {remedy}")
            else:
                lines.append(f"  {flow(key)}: {flow(item)}")
    return "\n".join(lines) + "\n"


def job_fields(job: Job) -> dict[str, Any]:
    """The job under the names of the job file, JSON values; fields with their defaults are left out."""
    values = {row.name: _SPECIAL.get(row.name, _value)(row, job) for row in FIELDS}
    added = {name: given for name, given in job.places.items() if name not in PLACES and given}
    return {row.name: values[row.name] for row in FIELDS if _said(row, values[row.name])} | added


def plain_hyperparameters(job: Job) -> dict[str, Any]:
    """Hyperparameters as JSON values, numbers as they were spelled; text that is no JSON as it is."""

    def value(text: str) -> Any:
        try:
            return json.loads(text, parse_float=SpelledFloat)
        except (ValueError, RecursionError):
            return str(text)

    return {name: value(text) if isinstance(text, RawText) else text for name, text in job.hyperparameters.items()}


def flow(value: Any) -> str:
    """A value in YAML's flow style, which JSON is; numbers as they were spelled."""
    if isinstance(value, SpelledFloat):
        spelled = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}
        return spelled.get(value.text, value.text)
    if isinstance(value, RawText):
        return json.dumps(str(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict):
        pairs = (f"{json.dumps(str(key))}: {flow(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    return json.dumps(value)


def _value(row: Field, job: Job) -> Any:
    if row.kind == "record":
        return _record(row, {r.name: attrgetter(r.attribute)(job) for r in row.rows if r.attribute})
    return attrgetter(row.attribute)(job)


def _record(row: Field, values: dict[str, Any]) -> Any:
    """Without defaults; the short form where that says it all."""
    given = _without_defaults(row.rows, values)
    return given[row.short] if given.keys() == {row.short} else given


def _without_defaults(rows: tuple[Field, ...], values: dict[str, Any]) -> dict[str, Any]:
    return {row.name: values[row.name] for row in rows if _said(row, values.get(row.name))}


def _said(row: Field, value: Any) -> bool:
    """Whether a job file has to say a value: it is not the default, nor empty."""
    return value != row.default and value not in (None, "", (), [], {})


def _hyperparameters(row: Field, job: Job) -> dict[str, Any]:
    return plain_hyperparameters(job)


def _channels(row: Field, job: Job) -> dict[str, Any]:
    given = [one for one in job.channels if job.parent is None or one.name != PARENTS_CHANNEL]
    return {one.name: _without_defaults(row.rows, vars(one)) for one in given}


def _from_run(row: Field, job: Job) -> str:
    """By its folder, which is found from everywhere."""
    return job.parent.folder if job.parent is not None else job.from_run


def _instances(row: Field, job: Job) -> Any:
    return row.default if job.instance_groups or job.machines else job.instances


def _instance_groups(row: Field, job: Job) -> dict[str, Any]:
    groups = {}
    for one in job.instance_groups:
        gpus = "all" if one.resources.gpus == ALL_GPUS else one.resources.gpus
        said = _without_defaults(row.rows, {**vars(one), **vars(one.resources), "gpus": gpus})
        groups[one.name] = {"instances": one.instances, **said}
    return groups


def _distribution(row: Field, job: Job) -> Any:
    distribution = job.distribution
    if not distribution.for_amazons_library:
        return _value(row, job)
    if "parameters" not in distribution.traits.takes:
        return {"smdistributed": {"dataparallel": {"enabled": True}}}
    library = {"modelparallel": {"enabled": True, "parameters": distribution.parameters}}
    mpi = {
        "enabled": distribution.mpi,
        "processes_per_host": distribution.processes_per_host,
        "custom_mpi_options": distribution.mpi_options,
    }
    return {"smdistributed": library, "mpi": {name: value for name, value in mpi.items() if value}}


def _environment(row: Field, job: Job) -> dict[str, Any]:
    references = {name: {one.kind: one.name} for name, one in job.references.items()}
    return {**job.environment, **references}


def _metric_definitions(row: Field, job: Job) -> dict[str, str]:
    return dict(job.metric_definitions)


def _notify(row: Field, job: Job) -> dict[str, Any]:
    return {one.name: _record(row, vars(one)) for one in job.notify}


def _resources(row: Field, job: Job) -> dict[str, Any]:
    gpus = "all" if job.resources.gpus == ALL_GPUS else job.resources.gpus
    return _without_defaults(row.rows, {**vars(job.resources), "gpus": gpus})


def _checkpoints(row: Field, job: Job) -> Any:
    path = f"{DEFAULT_BASE}/{job.checkpoint_path}"
    values = {r.name: attrgetter(r.attribute)(job) for r in row.rows if r.attribute}
    return _record(row, {**values, "local_path": path})


def _spot(row: Field, job: Job) -> Any:
    return (_record(row, vars(job.spot)) or True) if job.spot else None


def _compiler(row: Field, job: Job) -> Any:
    given = {r.name: job.compiler[r.setting] for r in row.rows if r.setting in job.compiler}
    return given[row.short] if given.keys() == {row.short} else given


def _place(row: Field, job: Job) -> dict[str, Any]:
    return job.places.get(row.name, {})


_SPECIAL: dict[str, Callable[[Field, Job], Any]] = {
    "hyperparameters": _hyperparameters,
    "channels": _channels,
    "from_run": _from_run,
    "instances": _instances,
    "instance_groups": _instance_groups,
    "distribution": _distribution,
    "environment": _environment,
    "metric_definitions": _metric_definitions,
    "resources": _resources,
    "checkpoints": _checkpoints,
    "spot": _spot,
    "compiler": _compiler,
    "notify": _notify,
    **dict.fromkeys(PLACES, _place),
}
