"""Secrets by reference: a job names where a variable's value is; it is looked up when hosts start, and kept nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainshed.base.errors import TrainshedError, did_you_mean
from trainshed.base.files import read_bytes
from trainshed.base.secrets import longest_first
from trainshed.contract.wire.secret_names import environment_secrets
from trainshed.contract.wire.variables import SECRET_NAMES

from .checker import Checker, resolve
from .job import Job, SecretReference
from .nodes import Node

KINDS = ("env", "file", "secret")
SECRETS_FOLDER = "/run/secrets"  # where Docker, Podman and Compose put a container's secrets
LARGEST = 64 << 10  # bytes


def read_reference(name: str, node: Node, fields: Checker) -> SecretReference | None:
    """`{env: NAME}`, `{file: PATH}` or `{secret: NAME}`; None, with the problem noted, where it is none of these."""
    inner = Checker(node.value, fields.problems, f"environment.{name}.")
    if len(node.value) != 1:
        fields.problem(name, "must be text, or one of {env: NAME}, {file: PATH}, {secret: NAME}", value="")
        return None
    (kind,) = node.value
    inner.unknown(KINDS)
    if kind not in KINDS:
        return None
    text = inner.text(kind)
    if not text:
        inner.problem(kind, "must not be empty")
        return None
    if kind == "secret" and ("/" in text or text in (".", "..")):
        inner.problem(kind, f"is not a valid secret name: it must be the name of a file in {SECRETS_FOLDER}")
        return None
    return SecretReference(kind, resolve(text, node.value[kind].folder or os.getcwd()) if kind == "file" else text)


def look_up(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """The values of the job's references, and the variable that tells `train` to blank them out.

    Raises:
        TrainshedError: one leads nowhere.
    """
    values = {name: _value(name, reference, environ) for name, reference in job.references.items()}
    return {**values, SECRET_NAMES: ",".join(values)} if values else {}


def secrets_of(job: Job, looked_up: Mapping[str, str]) -> tuple[str, ...]:
    """Everything that must never be shown: values of references, and of names that say so, at any depth. Longest first.

    Args:
        looked_up: what `look_up` has found, {} where nothing is started.
    """
    nested = {"config": job.config, "parameters": job.distribution.parameters, "tags": job.tags}
    named = environment_secrets({**nested, **job.environment, **job.hyperparameters})
    return longest_first({*named, *environment_secrets(looked_up)})


def _value(name: str, reference: SecretReference, environ: Mapping[str, str]) -> str:
    if reference.kind == "env":
        if reference.name not in environ:
            near = did_you_mean(reference.name, environ)
            raise TrainshedError(f"environment.{name}: there is no variable {reference.name} here", hint=near)
        return environ[reference.name]
    path = reference.name if reference.kind == "file" else f"{SECRETS_FOLDER}/{reference.name}"
    try:
        data = read_bytes(path, LARGEST)
        if data is None:
            raise TrainshedError(f"environment.{name}: there is no {path}")
        text = data.decode()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not text, or too long for a variable"
        raise TrainshedError(f"environment.{name}: {path} cannot be read: {said}") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if "\0" in text:
        raise TrainshedError(f"environment.{name}: {path} contains a NUL character, which a variable cannot contain")
    return text
