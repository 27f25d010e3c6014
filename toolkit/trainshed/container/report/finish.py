"""The sixth step: writes how the job ended, says it, and returns the exit status."""

from __future__ import annotations

from trainshed.contract.errors import EXIT_SUCCESS
from trainshed.contract.outcome import read_own_failure, write_failure, write_success

from ..console import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.outcome import Failure
    from trainshed.contract.paths import Paths

    from ..supervisor.plan import Outcome
    from .record import RunRecord


def finish(paths: Paths, record: RunRecord, outcome: Outcome | None, failure: Failure | None) -> int:
    """Writes the failure or success file and the run record; returns the exit status for `train`.

    A script that exits with 0 after a stop signal has stopped, not succeeded and not failed: neither file is written.
    """
    if record.room is not None:
        record.room.free()
    record.phase("training" if outcome is not None else "preparing")
    exit_code = failure.exit_code if failure else EXIT_SUCCESS
    stopped = outcome is not None and (outcome.stop_signal or outcome.stopped_by) and not failure
    try:
        if failure:
            own = read_own_failure(paths)
            write_failure(paths, failure.text())
            if own:
                say(f"the script gave its own reason: {own.splitlines()[0][:300]}")
        elif not stopped:
            write_success(paths)
    except OSError as error:
        where = paths.failure if failure else paths.success
        say(f"{where} cannot be written: {error.strerror}")
    if outcome is not None and outcome.left_behind:
        say(f"{outcome.left_behind} process(es) that the script had left running were ended")
    if outcome is not None and outcome.log_problem:
        say(outcome.log_problem)
    record.ended(outcome, failure, exit_code)
    if failure:
        say("\n".join(failure.text().split("\n\n")[0].splitlines()))
        say(f"Reporting training FAILURE (exit status {exit_code})")
    elif stopped:
        say("Reporting training STOPPED: the script ended in time after the stop signal")
    else:
        say("Reporting training SUCCESS")
    return exit_code
