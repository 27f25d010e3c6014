"""`trainshed run JOB --find-batch-size NAME`: short runs tell how large the batch can be, then the job is run with that.

A probe is the job itself with another value of one hyperparameter, which ends after a few steps and tells how much memory
they took. One that runs out of memory fails, and that is an answer too.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import replace

from trainshed.base.errors import TrainshedError, exit_status
from trainshed.contract.hyperparameters import SpelledFloat
from trainshed.contract.wire.batch_search import BatchSize, largest_batch, scaled_learning_rate
from trainshed.contract.wire.variables import PROBE

from ..acting import Hosts, acting
from ..control.execution import execute
from ..display.screen import Screen
from ..job.job import Job
from ..job.places import HERE

STEPS = 3  # of a probe: the first allocates the optimizer's state, the second is compiled, the third is as all others
TRIES = 8
RESERVE = 0.1  # of the memory stays free


def fitted(job: Job, name: str, rate: str, environ: Mapping[str, str]) -> Job:
    """The job with the largest batch that fits, and, where asked, with the learning rate that goes with it.

    Args:
        name: the hyperparameter that is the batch size; its present value is the first to be tried.
        rate: the hyperparameter that is the learning rate, "" to leave it alone.

    Raises:
        TrainshedError: the job has no such hyperparameter, not even its first batch fits, or it fails for another reason.
    """
    batch = job.hyperparameters.get(name)
    if type(batch) is not int or batch < 1:
        raise TrainshedError(
            f"--find-batch-size {name}: the job has no hyperparameter of this name that is a whole number",
            hint=f"set its present value: --hp {name}=8",
        )
    if rate and not isinstance(job.hyperparameters.get(rate), (int, float)):
        raise TrainshedError(f"--scale-lr {rate}: the job has no hyperparameter of this name that is a number")
    screen = Screen()
    try:
        found = _search(job, name, batch, screen, environ)
        if not found.batch:
            raise TrainshedError(f"{name} = {found.tries[-1].batch} does not fit into {_size(found.limit_bytes)} of memory")
        used = f"{_size(found.peak_bytes)} of {_size(found.limit_bytes)}, {len(found.tries)} probes"
        screen.say(f"{name}: {batch} -> {found.batch} ({used})")
        changed = {**job.hyperparameters, name: found.batch}
        if rate:
            before = float(job.hyperparameters[rate])
            changed[rate] = SpelledFloat(f"{scaled_learning_rate(before, batch, found.batch):.6g}")
            screen.say(f"{rate}: {before:g} -> {changed[rate]} (linear in the batch)")
        return replace(job, hyperparameters=changed)
    finally:
        screen.close()


def _search(job: Job, name: str, batch: int, screen: Screen, environ: Mapping[str, str]) -> BatchSize:
    limits: list[int] = []

    def peak_of(size: int) -> int | None:
        screen.say(f"probe: {name} = {size}")
        folder = tempfile.mkdtemp(prefix="trainshed-probe-")
        try:
            probe = replace(
                job,
                hyperparameters={**job.hyperparameters, name: size},
                environment={**job.environment, PROBE: str(STEPS)},
                output=f"{folder}/run",
                checkpoints="",
            )
            here = acting(HERE)
            assert isinstance(here, Hosts)
            finished = execute(probe, here.backend(probe, environ, screen.say), screen, environ)  # a backend is for one run
            answers = _answers(f"{folder}/run")
            if answers:
                limits.append(min(answer["limit_bytes"] for answer in answers))
                return max(answer["peak_bytes"] for answer in answers)
            if finished.verdict.exit_code == 0:
                raise TrainshedError(
                    f"the job ended before {STEPS} optimizer steps, so its use of memory is not known",
                    hint="let it train for longer, or use trainshed.compiler.find_batch_size in the script",
                )
            if _out_of_memory(finished.verdict.reason, finished.verdict.exit_code):
                return None
            raise TrainshedError(f"the probe with {name} = {size} failed: {finished.verdict.reason.splitlines()[0]}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return largest_batch(peak_of, lambda: min(limits, default=0), start=batch, tries=TRIES, reserve=RESERVE)


def _answers(folder: str) -> list[dict[str, int]]:
    answers = []
    for path in glob.glob(f"{glob.escape(folder)}/*/output/data/probe/*.json"):
        with open(path, encoding="utf-8") as file:
            answers.append(json.load(file))
    return answers


def _out_of_memory(reason: str, exit_code: int) -> bool:
    text = reason.lower()
    killed = exit_code == exit_status(-signal.SIGKILL)
    return killed or "out of memory" in text or "outofmemory" in text or "can't allocate memory" in text


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def run_fitted(job: Job, name: str, rate: str, environ: Mapping[str, str] = os.environ) -> int:
    """Finds the batch, then runs the job; the job's exit status."""
    from ..control.execution import run_job

    return run_job(fitted(job, name, rate, environ), environ)
