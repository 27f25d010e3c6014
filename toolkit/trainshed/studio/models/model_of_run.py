"""What a run gives the model store: the files of its model, and what is known of how they were made."""

from __future__ import annotations

import math
from typing import Any

from trainshed.base.errors import TrainshedError
from trainshed.runner.control.parent import model_sha256
from trainshed.runner.state.outputs import last_values
from trainshed.runner.state.provenance import provenance_of
from trainshed.runner.state.stored import Stored
from trainshed.studio.models.version import VersionMetadata

_LONGEST = 4096  # characters of a text that is kept
_MOST = 1000  # values of a mapping


def require_whole(run: Stored) -> None:
    """Raises TrainshedError where a run is not over, or did not complete: its model may be a part of one."""
    status = run.said[0]
    if not run.ended:
        how = "its runner was killed" if run.lost else "it has not ended"
        raise TrainshedError(f"the run {run.name} is not complete: {how}", hint="wait for its end, or use --any-status")
    if status != "Completed":
        reason = str(run.status.get("FailureReason") or "").partition("\n")[0]
        raise TrainshedError(
            f"the run {run.name} has the status {status}" + (f": {reason}" if reason else ""),
            hint="--any-status adds its model nevertheless",
        )


def facts_of(run: Stored) -> VersionMetadata:
    """What is known of a run, as far as its files have the right form; secrets are masked in them."""
    about, status, ours = run.about, run.status, run.ours
    job = about["job"] if isinstance(about.get("job"), dict) else {}
    parent, provenance = ours.get("FromRun"), provenance_of(run)
    known: dict[str, Any] = {
        "name": run.name,
        "id": run.id,
        "folder": run.folder,
        "status": run.said[0],
        "created": status.get("CreationTime"),
        "program": job.get("program"),
        "image": job.get("image"),
        "code": provenance.code.get("digest"),
        "commit": provenance.git.get("commit"),
        "hyperparameters": status.get("HyperParameters"),
        "channels": {str(one["name"]): one.get("path") for one in _dicts(job.get("channels")) if "name" in one},
        "data": ours.get("Data"),
        "from_run": parent.get("Run") if isinstance(parent, dict) else None,
        "archive_sha256": model_sha256(run),
    }
    return VersionMetadata(
        metrics_of(run), {name: plain for name, value in known.items() if (plain := _plain(value)) not in (None, "")}
    )


def metrics_of(run: Stored) -> dict[str, float]:
    """The last value of each metric; those that are not finite are left out."""
    return {name: value for name, value in last_values(run.folder, run.status).items() if math.isfinite(value)}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _plain(value: Any, depth: int = 0) -> Any:
    """A JSON value of a file that anybody may have written, of bounded size, without what JSON does not know."""
    if isinstance(value, str):
        return value[:_LONGEST].encode("utf-8", "replace").decode()
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    if isinstance(value, (int, float)) or value is None:
        return value
    if isinstance(value, dict) and depth < 6:
        return {str(name)[:_LONGEST]: _plain(one, depth + 1) for name, one in list(value.items())[:_MOST]}
    if isinstance(value, list) and depth < 6:
        return [_plain(one, depth + 1) for one in value[:_MOST]]
    return None
