"""`job.json` of a run's folder, written when the run starts and read by later commands."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, is_dataclass, replace
from operator import attrgetter
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from trainshed.base.patterns import compiled
from trainshed.base.reader import printable
from trainshed.base.secrets import mask_arguments, mask_leaves, mask_mapping
from trainshed.contract.config import CHANNEL_NAME

from ..files.platform_files import shown_hyperparameters
from ..files.run import Run
from ..job.fields import every
from ..job.job import ALL_GPUS, Job
from ..job.nodes import RawText
from . import identity
from .status import iso

FORMAT = 1
_PATH_BELOW = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_FILE = re.compile(r"[A-Za-z0-9_-]+\.json")


def described(run: Run, engine: str = "", secrets: tuple[str, ...] = ()) -> dict[str, object]:
    """`job.json`: the job as it was understood, secrets masked, and where and when it was started.

    Args:
        engine: where the container engine is that has the hosts.
        secrets: values that are masked wherever they stand.
    """
    host = run.hosts[0]
    return {
        "format": FORMAT,
        "run": run.name,
        "id": run.id,
        **identity.of_folder(run.folder),
        "started": iso(run.started),
        "started_seconds": run.started,
        "containers": host.base != host.folder,
        "engine": engine,
        "directory": os.getcwd(),
        "job": masked(run.job, secrets),
    }


def masked(job: Job, secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    """A job as JSON values that `job_of` reads, secrets masked.

    Args:
        secrets: values that are masked wherever they stand.
    """
    found = asdict(job)
    found["hyperparameters"] = shown_hyperparameters(job, secrets)
    for name in ("environment", "tags", "config"):
        found[name] = mask_mapping(found[name], secrets)
    found["distribution"]["parameters"] = mask_mapping(job.distribution.parameters, secrets)
    found["places"] = {name: _masked_place(given, secrets) for name, given in job.places.items()}
    for name in ("entrypoint", "program", "notes", "channels", "notify"):
        found[name] = mask_leaves(found[name], secrets)
    found["arguments"] = mask_arguments(list(job.arguments), secrets)
    return found


def _masked_place(given: dict[str, Any], secrets: tuple[str, ...]) -> dict[str, Any]:
    """What the job says of a place; its `secrets` are names of secrets that are kept there, not their values."""
    return {**mask_mapping(given, secrets), **{name: given[name] for name in ("secrets",) if name in given}}


def job_of(data: dict[str, Any]) -> Job:
    """A job from `job.json`, whoever may have written that.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError, re.error: the data does not describe one.
    """
    job: Job = typed(Job, data)
    raw = {name: RawText(str(text)) for name, text in job.hyperparameters.items()}
    job = replace(job, hyperparameters=raw)
    if not 1 <= job.instances <= 512 or not _PATH_BELOW.fullmatch(job.checkpoint_path):
        raise ValueError("instances")
    if ".." in job.checkpoint_path.split("/"):
        raise ValueError("checkpoint_path")
    groups = job.instance_groups
    if groups and (job.instances != sum(one.instances for one in groups) or min(one.instances for one in groups) < 1):
        raise ValueError("instance_groups")
    if len({one.name for one in groups}) < len(groups):
        raise ValueError("instance_groups")
    names = [channel.name for channel in job.channels]
    if not all(re.fullmatch(CHANNEL_NAME, name) and name not in (".", "..") for name in names):
        raise ValueError("channels")
    if not all(_FILE.fullmatch(name) for name in job.config):
        raise ValueError("config")
    for _, regex in job.metric_definitions:
        if compiled(regex).groups < 1:
            raise ValueError("metric_definitions")
    _check_bounds(job)
    return job


def _check_bounds(job: Job) -> None:
    """Numbers are as a job file may have them. Raises ValueError."""
    for name, row in every():
        if row.kind not in ("whole", "number") or not row.attribute or (name.startswith("spot.") and job.spot is None):
            continue
        value = attrgetter(row.attribute)(job)
        if value not in (row.default, None, ALL_GPUS) and not row.low <= value <= row.high:
            raise ValueError(name)


def typed(kind: Any, data: Any) -> Any:
    """A dataclass from what `asdict` and JSON have made of it, each value of its kind. Raises TypeError, ValueError."""
    if not isinstance(data, dict):
        raise TypeError(kind.__name__)
    hints = get_type_hints(kind)
    if unknown := data.keys() - hints.keys():
        raise TypeError(f"{kind.__name__}: {sorted(unknown)}")
    return kind(**{name: _value(hints[name], value) for name, value in data.items()})


def _value(hint: Any, value: Any) -> Any:
    """A value of the kind that an annotation says. Raises TypeError, ValueError."""
    inner = get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint):
        return typed(hint, value)
    if get_origin(hint) in (Union, UnionType):  # with None
        return None if value is None else _value(inner[0], value)
    if get_origin(hint) is tuple and isinstance(value, list):
        kinds = [inner[0]] * len(value) if inner[-1] is ... else inner
        return tuple(_value(kind, item) for kind, item in zip(kinds, value, strict=True))
    if get_origin(hint) is dict and isinstance(value, dict):
        return {_value(str, name): _value(inner[1], item) for name, item in value.items()}
    if hint is float and type(value) in (int, float) and abs(value) < float("inf"):
        return float(value)
    if type(value) is hint and (hint is not str or printable(value)):
        return value
    raise TypeError(str(hint))
