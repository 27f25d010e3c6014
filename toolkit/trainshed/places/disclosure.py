"""Secrets that an export must not hold in the clear: it is printed, kept in version control, and readable in the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainshed.base.secrets import MASK, is_secret_name, mask_mapping, mask_text
from trainshed.contract.wire.variables import SECRET_NAMES
from trainshed.runner.job.job import Job
from trainshed.runner.job.references import secrets_of


def secret_variables(job: Job) -> list[str]:
    """The names of variables whose values must go by reference, in the job's order.

    Their name says so, or their value: a password at any depth of JSON, a login in a URL, a key of a known form, or what
    is secret elsewhere in the job. Variables that the job itself gives by reference are among them.
    """
    shown = mask_mapping(job.environment, secrets_of(job, {}))
    masked = [name for name, value in job.environment.items() if is_secret_name(name) or shown[name] != value]
    return list(dict.fromkeys([*masked, *job.references]))


def disclosed(values: dict[str, Any], job: Job) -> list[str]:
    """The names among `values` (hyperparameters, files) whose values hold a secret, by name or by value."""
    shown = mask_mapping(values, secrets_of(job, {}))
    return [name for name, value in values.items() if MASK in str(shown[name]) and MASK not in str(value)]


def disclosures(made: Any, job: Job, place: str = "") -> Iterator[str]:
    """Finds where in a finished export a secret stands in the clear: `[0].spec.containers[0].env[2]`."""
    secrets = secrets_of(job, {})

    def look(value: Any, where: str) -> Iterator[str]:
        if isinstance(value, dict):
            name = str(value.get("name", ""))
            if name != SECRET_NAMES and is_secret_name(name) and isinstance(value.get("value"), str) and value["value"]:
                yield f"{where}.{name}"
                return
            for key, item in value.items():
                if key != "binaryData":  # the code's files, as they are
                    yield from look(item, f"{where}.{key}" if where else str(key))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                yield from look(item, f"{where}[{number}]")
        elif isinstance(value, str) and mask_text(value, secrets) != value:
            yield where

    yield from look(made, place)
