"""`job.json` of a run's folder, written when the run starts and read by later commands."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import Any

from trainshed.base.secrets import mask_arguments, mask_leaves, mask_mapping

from ..files.platform_files import shown_hyperparameters
from ..files.run import Run
from ..job.job import Channel, Distribution, Job, Reference, Resources, Spot
from ..job.nodes import RawText
from . import identity
from .status import iso

FORMAT = 1


def described(run: Run, engine: str = "", secrets: tuple[str, ...] = ()) -> dict[str, object]:
    """`job.json`: the job as it was understood, secrets masked, and where and when it was started.

    Args:
        engine: where the container engine is that has the hosts.
        secrets: values that are masked wherever they stand.
    """
    job = asdict(run.job)
    job["hyperparameters"] = shown_hyperparameters(run.job, secrets)
    for name in ("environment", "tags", "config"):
        job[name] = mask_mapping(job[name], secrets)
    job["distribution"]["parameters"] = mask_mapping(run.job.distribution.parameters, secrets)
    job["places"] = {name: _masked_place(given, secrets) for name, given in run.job.places.items()}
    for name in ("entrypoint", "program", "notes", "channels"):
        job[name] = mask_leaves(job[name], secrets)
    job["arguments"] = mask_arguments(list(run.job.arguments), secrets)
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
        "job": job,
    }


def _masked_place(given: dict[str, Any], secrets: tuple[str, ...]) -> dict[str, Any]:
    """What the job says of a place; its `secrets` are names of secrets that are kept there, not their values."""
    return {**mask_mapping(given, secrets), **{name: given[name] for name in ("secrets",) if name in given}}


def job_of(data: dict[str, Any]) -> Job:
    """A job from `job.json`. Raises KeyError, TypeError, ValueError if the data does not describe one."""
    fields = dict(data)
    fields["hyperparameters"] = {str(name): RawText(str(text)) for name, text in data["hyperparameters"].items()}
    fields["channels"] = tuple(Channel(**{**one, "files": tuple(one["files"])}) for one in data["channels"])
    fields["distribution"] = Distribution(**data["distribution"])
    fields["resources"] = Resources(**data["resources"])
    fields["references"] = {name: Reference(**one) for name, one in data["references"].items()}
    fields["metric_definitions"] = tuple((str(name), str(regex)) for name, regex in data["metric_definitions"])
    spot = data["spot"]
    fields["spot"] = Spot(**{**spot, "interrupt_after": tuple(spot["interrupt_after"])}) if spot else None
    for name in ("entrypoint", "arguments", "notes"):
        fields[name] = tuple(data[name])
    job = Job(**fields)
    if not 1 <= job.instances <= 512 or not re.fullmatch(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", job.checkpoint_path):
        raise ValueError("instances")
    if ".." in job.checkpoint_path.split("/"):
        raise ValueError("checkpoint_path")
    return job
