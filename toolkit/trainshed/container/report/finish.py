"""The sixth step: writes how the job ended, says it, and returns the exit status."""

from __future__ import annotations

import os

from trainshed.base.errors import EXIT_SUCCESS, visible
from trainshed.base.record import Record
from trainshed.contract.outcome import read_own_failure, write_failure, write_success
from trainshed.contract.wire.checkpoint_trouble import take

from .results import remarks
from .run_page import write_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.base.voice import Voice
    from trainshed.contract.outcome import Failure
    from trainshed.contract.paths import Paths

    from ..notices import Interruption
    from ..supervisor.launch_plan import Outcome
    from .run_record import RunRecord

_MOST_TOLD = 50  # restarts in a failure file


class TrainingResult(Record):
    """How a job ended on this host: by a failure, by an interruption, or by neither (success).

    outcome: how the ranks of the last attempt ended, None where none was started.
    """

    failure: Failure | None = None
    interruption: Interruption | None = None
    outcome: Outcome | None = None


def finish(paths: Paths, record: RunRecord, result: TrainingResult, voice: Voice) -> int:
    """Writes the failure or success file and the run record; returns the exit status for `train`.

    A script that exits with 0 after a stop signal or another notice was interrupted: it has neither succeeded nor
    failed. Then neither file is written, and the exit status is the one that the job asks for (0 by default).
    """
    outcome = result.outcome
    result = result.replace(failure=result.failure and _with_earlier(result.failure, record))
    failure = result.failure
    interruption = result.interruption
    if record.room is not None:
        record.room.free()
    record.phase("training" if outcome is not None else "preparing")
    exit_code = failure.exit_code if failure else interruption.exit_code if interruption else EXIT_SUCCESS
    _write_outcome(paths, result, voice)
    if outcome is not None and outcome.left_behind:
        voice.say(f"ended {outcome.left_behind} process(es) that the script had left running")
    if outcome is not None and outcome.log_problem:
        voice.say(outcome.log_problem)
    if trouble := take(os.path.dirname(record.path), record.host):
        record.data["checkpoints"] = {"problem": trouble}
        voice.say(f"WARNING: {trouble}")
    record.ended(outcome, failure, exit_code, interruption)
    if record.problem:
        voice.say(record.problem)
    write_report(paths, record, voice, stopped=interruption is not None or bool(outcome and outcome.stop_signal))
    if failure:
        voice.say("\n".join([failure.text().split("\n\n")[0], *_problems(failure)]))
        voice.say(f"Reporting training FAILURE (exit status {exit_code})")
    elif interruption:
        voice.say(interruption.line())
    else:
        for remark in remarks(paths.model):
            voice.say(f"warning: {remark}")
        voice.say("Reporting training SUCCESS")
    return exit_code


def _problems(failure: Failure) -> list[str]:
    """All that is wrong with a job that cannot be read, a line each: who mends it wants to mend it once."""
    return failure.details.splitlines() if failure.kind == "JobError" else []


def _with_earlier(failure: Failure, record: RunRecord) -> Failure:
    """The failure, with those after which the ranks had been started again."""
    restarts = record.data.get("restarts", [])
    if not restarts:
        return failure
    reasons = [f"  {number}. {one.get('reason', '')}" for number, one in enumerate(restarts, 1)]
    told = "\n".join(["the ranks had been started again before, after:", *reasons[-_MOST_TOLD:]])
    return failure.replace(details="\n\n".join(part for part in (told, failure.details) if part))


def _write_outcome(paths: Paths, result: TrainingResult, voice: Voice) -> None:
    """The failure or success file; neither for a job that was interrupted."""
    try:
        if result.failure:
            from .termination import leave

            leave(visible(voice.mask(result.failure.text())))
            own = read_own_failure(paths)
            write_failure(paths, result.failure.text(), lambda text: visible(voice.mask(text)))
            if own:
                voice.say(f"the script gave its own reason: {own.splitlines()[0][:300]}")
        elif result.interruption is None and not (result.outcome and result.outcome.stopped_by):
            write_success(paths)
    except OSError as error:
        where = paths.failure if result.failure else paths.success
        voice.say(f"cannot write {where}: {error.strerror}")
