"""What there is to be told of a run elsewhere, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainshed.metrics.media_reading import Medium, media_of
from trainshed.metrics.reading import Curve, read
from trainshed.runner.state.outputs import outputs_of
from trainshed.runner.state.provenance import provenance_of
from trainshed.runner.state.stored import Stored


@dataclass(frozen=True)
class Exported:
    """A run as other tools get it.

    key: by which it is found again: its id, of a copy its folder.
    status: the platform's. over: whether nothing more comes. started, ended: seconds since 1970, 0 where nobody knows.
    parameters: hyperparameters, secrets masked. tags: of the job, and what the run notes of itself.
    media: pictures, tables and the like, by name. model: its folder.
    """

    key: str
    name: str
    folder: str
    status: str
    over: bool
    started: float
    ended: float
    parameters: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    series: tuple[Curve, ...] = ()
    media: dict[str, tuple[Medium, ...]] = field(default_factory=dict)
    model: str = ""


def exported(run: Stored, *, metrics: bool = True) -> Exported:
    """A run's values. metrics: whether the curves and the media are read, too."""
    known = provenance_of(run)
    given = run.ours.get("Tags")
    tags = {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}
    notes = {
        "trainshed.code": known.code.get("digest"),
        "trainshed.status": run.said[0],
        "trainshed.folder": run.folder,
        "trainshed.image": known.image.get("digest") or known.image.get("name"),
        "mlflow.source.git.commit": known.git.get("commit"),
        "mlflow.source.git.branch": known.git.get("branch"),
        "mlflow.source.git.repoURL": known.git.get("remote"),
    }
    parameters = run.status.get("HyperParameters")
    series = read(outputs_of(run.folder)) if metrics else {}
    return Exported(
        key=run.id or run.folder,
        name=run.name,
        folder=run.folder,
        status=run.said[0],
        over=run.ended or run.lost,
        started=_seconds(run.status.get("CreationTime")),
        ended=_seconds(run.status.get("TrainingEndTime") or run.status.get("LastModifiedTime")),
        parameters=parameters if isinstance(parameters, dict) else {},
        tags={**tags, **{name: str(value) for name, value in notes.items() if value}},
        series=tuple(series.values()),
        media=media_of(outputs_of(run.folder)) if metrics else {},
        model=f"{run.folder}/model",
    )


def _seconds(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
