"""`trainshed report`: the page of a run with all its hosts and attempts."""

from __future__ import annotations

from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic
from trainshed.runner.state.outputs import attempts_of
from trainshed.runner.state.run_goodput import goodput_of
from trainshed.runner.state.stored import Stored
from trainshed.studio.pages.facts import RunFacts, gather
from trainshed.studio.pages.markup import framed, is_ours
from trainshed.studio.pages.report import report, summary

_READ_SECONDS = 2.0  # in which a notebook's view reads metrics


def facts_of(run: Stored, seconds: float | None = None) -> RunFacts:
    """What a run's files tell. seconds: how long reading metrics may take; None for as long as it does."""
    told = gather(run.name, attempts_of(run.folder), run.status, seconds=seconds, goodput=goodput_of(run) or {})
    return told.replace(checkpoints=run.checkpoints)


def facts_of_job_folder(folder: str) -> RunFacts:
    """What /opt/ml of one host tells. Raises TrainshedError: it holds no run record."""
    facts = gather("", [[(f"{folder}/output", f"{folder}/output/data")]], {})
    if not facts.record:
        raise TrainshedError(
            f"{folder} holds no run record", hint="name a run, a run's folder, or a job folder (/opt/ml) in which a job ran"
        )
    return facts


def write(facts: RunFacts, path: str) -> None:
    """Writes the page. Raises TrainshedError: it cannot be written, or another file is there."""
    if not is_ours(path):
        raise TrainshedError(f"{path} is a file that trainshed did not make", hint="name another one with -o")
    try:
        write_atomic(path, report(facts))
    except OSError as error:
        raise TrainshedError(f"{path} cannot be written: {error.strerror}", hint="name another file with -o") from error


def in_notebook(run: Stored) -> str:
    """How a run stands, and its curves, for a notebook's cell."""
    facts = facts_of(run, _READ_SECONDS)
    return framed(summary(facts), 470 if facts.curves else 190)
