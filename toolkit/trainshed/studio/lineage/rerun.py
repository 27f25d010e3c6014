"""Makes a run again: the very code and hyperparameters, the same data, and on request the same packages or image."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainshed.base.errors import TrainshedError, some
from trainshed.base.secrets import MASK
from trainshed.runner.files import layout
from trainshed.runner.files.expected_data import check_data
from trainshed.runner.job.job import Job, Parent
from trainshed.runner.state.outputs import last_values
from trainshed.runner.state.provenance import Provenance, provenance_of
from trainshed.runner.state.stored import Stored, refuse_masked

from .environments import python_with
from .kept_code import restore_code

MOST_NAMED = 5
Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """How a run is to be made again.

    exact: with the very packages, or the very image. other_data: whatever the channels have now.
    leave_out: packages that need not be there.
    hyperparameters, variables: secrets, given again, since they were not kept.
    """

    exact: bool = False
    other_data: bool = False
    leave_out: Collection[str] = ()
    hyperparameters: Mapping[str, Any] | None = None
    variables: Mapping[str, str] | None = None


def job_again(run: Stored, wish: Wish, environ: Mapping[str, str], say: Say) -> Job:
    """The job of a run, to be run again; what is said of it goes to `say`.

    Raises:
        TrainshedError: its code, data or packages are not to be had as they were.
        JobError: a secret was not kept, and is not given again.
    """
    if not run.about:
        raise TrainshedError(f"{run.folder} has no job.json: there is nothing to make again")
    known = provenance_of(run)
    job = _with_secrets(run.run().job, wish, run.name)
    changes: dict[str, Any] = {}
    if job.source_dir:
        changes["source_dir"] = restore_code(run, known, environ)
        if known.code.get("earlier"):
            say("warning: its earlier attempts ran other code; this is the code of the last one")
    if len(run.ours.get("Attempts") or ()) > 1:
        say(f"note: {run.name} trained in {len(run.ours['Attempts'])} attempts, this run trains in one")
    if wish.exact:
        changes |= _exact(job, known, wish, environ, say, run.name)
    if not wish.other_data:
        changes["expect_data"] = known.data_digests
        if blind := sorted(channel.name for channel in job.channels if channel.name not in known.data_digests):
            say(f"note: {run.name} has no fingerprint of {some(blind, MOST_NAMED)}: its data may be another")
    made = replace(
        job,
        **changes,
        rerun_of=Parent(run.name, run.id, run.folder),
        tags={name: value for name, value in job.tags.items() if name != "tuning"},
        output="",
        full_name="",
        checkpoints="",  # those of the run would be gone on from
        checkpoint_copy_to="",
        notes=(),
    )
    check_data(layout.plan(made, in_containers=run.in_containers, now=time.time()), lambda _: None, staged=False)
    return made


def compared(before: Stored, after: Stored) -> list[str]:
    """One line for each metric that both runs have at their end, and whether the values are the same to the bit."""
    first, second = (last_values(run.folder, run.status) for run in (before, after))
    lines = []
    for name in first:
        if name in second:
            same = repr(first[name]) == repr(second[name])  # NaN, too
            values = f"{second[name]!r}, the same to the bit" if same else f"{second[name]!r}, was {first[name]!r}"
            lines.append(f"{name}: {values}")
    return lines


def _with_secrets(job: Job, wish: Wish, name: str) -> Job:
    """Raises JobError where a masked value is not given, TrainshedError where another one is."""
    hyperparameters, variables = dict(wish.hyperparameters or {}), dict(wish.variables or {})
    masked = {key for key, value in {**job.hyperparameters, **job.environment}.items() if MASK in str(value)}
    if other := sorted({*hyperparameters, *variables} - masked - set(job.references)):
        raise TrainshedError(
            f"{other[0]} is not a secret that {name} did not keep: a rerun takes everything else as it was",
            hint="for other values: trainshed clone RUN > job.yaml, and run that",
        )
    references = {key: held for key, held in job.references.items() if key not in variables}
    made = replace(
        job,
        hyperparameters={**job.hyperparameters, **hyperparameters},
        environment={**job.environment, **variables},
        references=references,
    )
    refuse_masked(made, name)
    return made


def _exact(job: Job, known: Provenance, wish: Wish, environ: Mapping[str, str], say: Say, name: str) -> dict[str, Any]:
    if not job.image:
        return {"python": python_with(known.environment, wish.leave_out, environ, say, name)}
    image = known.image.get("digest") or known.image.get("id")
    if not image:
        raise TrainshedError(f"{name} has not noted which image {job.image} was", hint="rerun without --exact")
    say(f"the image {job.image} as it was: {image}")
    return {"image": str(image)}
