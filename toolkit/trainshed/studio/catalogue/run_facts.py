"""Everything that a run's folder says of it, as JSON values: what `trainshed show` shows and `trainshed diff` compares."""

from __future__ import annotations

import json
import os
from typing import Any

from trainshed.base.errors import TrainshedError
from trainshed.base.plain_json import finite
from trainshed.base.secrets import mask_leaves, mask_mapping
from trainshed.contract.wire.fingerprints import in_shape
from trainshed.runner.state.provenance import Provenance, provenance_of
from trainshed.runner.state.records import record_of
from trainshed.runner.state.stored import Stored

from . import labels
from .indexed import facts_of, hyperparameters, measured

_ASIDE = frozenset(  # of the job: told elsewhere, or about where it was started rather than about what it does
    {"hyperparameters", "environment", "references", "tags", "channels", "notes", "name", "full_name", "output", "parent",
     "from_run", "rerun_of", "program", "image", "source_dir", "instances", "instance_type", "checkpoints", "expect_data"}
)  # fmt: skip


def told_of(run: Stored) -> dict[str, Any]:
    """A run, by section.

    `facts` (as in the catalogue), `reason` (of a failure, all of it), `tags`, `notes`, `hyperparameters`, `metrics` (count,
    first, last, min, max), `job` (its other settings), `environment` (its variables, secrets masked), `data` (digests and
    descriptions by channel), `code`, `git`, `image`, `python`, `platform`, `packages`, `machine`, `phases`, `parents`,
    `model`, `problems`. What is not known is empty.
    """
    known = provenance_of(run)
    job = _mapping(run.about.get("job"))
    labelled = labels.read(run.folder, labels.of_job(run))
    record = _record(run)
    told = {
        "facts": facts_of(run, labelled),
        "reason": str(run.status.get("FailureReason") or ""),
        "tags": labelled.tags,
        "notes": [{"at": at, "text": text} for at, text in labelled.notes],
        "hyperparameters": {
            name: text if number is None else number for name, (number, text) in hyperparameters(run).items()
        },
        "metrics": _metrics(run),
        "job": {name: value for name, value in sorted(mask_leaves(job).items()) if name not in _ASIDE and value},
        "environment": {**mask_mapping(_mapping(job.get("environment"))), **_references(job)},
        "channels": {str(one.get("name")): str(one.get("path")) for one in _objects(job.get("channels"))},
        "data": _data(run, known),
        "code": known.code,
        "git": known.git,
        "image": known.image,
        "python": str(known.environment.get("python") or _mapping(record.get("versions")).get("python") or ""),
        "platform": str(known.environment.get("platform") or ""),
        "packages": known.packages,
        "machine": _machine(record),
        "phases": [
            {"name": str(one.get("name")), "seconds": one["seconds"]} for one in record.get("phases", []) if "seconds" in one
        ],
        "parents": list(known.parents),
        "model": {**known.model, **_archive(run)},
        "problems": [labelled.problem] if labelled.problem else [],
    }
    return _mapping(finite(told))


def _metrics(run: Stored) -> dict[str, dict[str, Any]]:
    found = {}
    for name, one in measured(run).items():
        first, least, most = (one.first, one.least, one.most) if one.count else (None, None, None)
        found[name] = {"count": one.count, "first": first, "last": one.last, "min": least, "max": most}
    return found


def _references(job: dict[str, Any]) -> dict[str, str]:
    """Variables whose values are kept elsewhere: where, as JSON."""
    return {str(name): json.dumps(one, sort_keys=True) for name, one in _mapping(job.get("references")).items()}


def _data(run: Stored, known: Provenance) -> dict[str, dict[str, Any]]:
    """Of each channel its fingerprints by host: the records have them, else the status that was made of those."""
    said = known.data or {
        str(channel): in_shape(hosts) for channel, hosts in _mapping(run.ours.get("Data")).items() if in_shape(hosts)
    }
    return {channel: dict(hosts) for channel, hosts in sorted(said.items())}


def _record(run: Stored) -> dict[str, Any]:
    """The run record of the first host, {} where there is none."""
    try:
        return record_of(run.run().hosts[0])
    except TrainshedError:
        return {}


def _machine(record: dict[str, Any]) -> dict[str, Any]:
    hardware = _mapping(_mapping(record.get("cluster")).get("hardware"))
    return {str(name): value for name, value in hardware.items() if isinstance(value, (int, str)) and value}


def _archive(run: Stored) -> dict[str, Any]:
    path = f"{run.folder}/output/model.tar.gz"
    sums = [
        one.get("Sha256") for one in _objects(run.ours.get("Archives")) if str(one.get("Path", "")).endswith("model.tar.gz")
    ]
    found = {"archive": path} if os.path.exists(path) else {}
    return {**found, **({"archive_sha256": sums[0]} if sums and isinstance(sums[0], str) else {})}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
