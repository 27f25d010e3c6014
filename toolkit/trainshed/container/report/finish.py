"""The sixth step: writes how the job ended, says it, and returns the exit status."""

from __future__ import annotations

import os

from trainshed.base.errors import EXIT_SUCCESS, some, visible
from trainshed.base.record import Record
from trainshed.contract.outcome import clip, read_own_failure, write_failure, write_success
from trainshed.contract.wire.checkpoint_trouble import take

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


LITTLE = 1 << 20  # bytes; a disk with less is full
_MOST_NAMED = 3


def remarks(folder: str) -> list[str]:
    """One line for each kind of thing that cannot be packed as it is; [] where all is well. Never raises."""
    if not os.path.isdir(folder):
        what = "is not a folder any more" if os.path.lexists(folder) else "is gone"
        return [f"{folder} {what}: the platform finds no model"]
    special: list[str] = []
    broken: list[str] = []
    closed: list[str] = []
    queue = [folder]
    while queue:
        place = queue.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(entry.path)
                    elif entry.is_symlink():
                        broken += [entry.path] if not os.path.exists(entry.path) else []
                    elif not entry.is_file(follow_symlinks=False):
                        special.append(entry.path)
                    elif not os.access(entry.path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
                        closed.append(entry.path)
        except OSError:
            closed.append(place)
    found = (
        ("holds pipes, sockets or devices, on which packing may fail or hang", special),
        ("holds links that lead nowhere", broken),
        ("holds what cannot be read", closed),
    )
    lines = [f"{folder} {what}: {_named(folder, paths)}" for what, paths in found if paths]
    if _is_full(folder):
        lines.append(f"the disk of {folder} is full: check that the model is whole; packing it may need room there, too")
    return lines


def _named(folder: str, paths: list[str]) -> str:
    return some([os.path.relpath(path, folder) for path in sorted(paths)], _MOST_NAMED)


def _is_full(folder: str) -> bool:
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return status.f_blocks > 0 and status.f_bavail * status.f_frsize < LITTLE


REPORT_SECONDS = 30.0  # that it may take; it takes one where the machine is not busy
STOPPED_REPORT_SECONDS = 10.0  # the same where somebody wants the job to end


def write_report(paths: Paths, record: RunRecord, voice: Voice, *, stopped: bool) -> None:
    """Writes the report where there is something to be seen, and says where it is. Costs the report at worst, never the job.

    Args:
        stopped: somebody waits for the end of the job.
    """
    if record.data.get("cluster", {}).get("rank") != 0 or not _measured(paths):
        return
    import json
    import subprocess

    from trainshed.base.wings import has_wing
    from trainshed.machine.isolation import isolated

    if not has_wing("studio"):
        return

    seconds = STOPPED_REPORT_SECONDS if stopped else REPORT_SECONDS
    command = isolated("trainshed.studio.pages", paths.output, paths.output_data, str(seconds))
    try:
        done = subprocess.run(
            command,
            input=json.dumps(voice.secrets).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds + 1,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        voice.say(f"warning: the report was not written: {error}")
        return
    said = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if done.returncode == 0 and said:
        voice.say(f"report: {said[-1]}")
    elif done.returncode < 0:
        voice.say(f"warning: the report was not written: it took more than {seconds:.0f} s; `trainshed report` makes it")
    else:
        voice.say(f"warning: the report was not written: {said[-1] if said else 'no reason is known'}")


def _measured(paths: Paths) -> bool:
    """Whether the job has metrics or a profile."""
    profiler = f"{paths.output}/profiler"
    if os.path.exists(f"{paths.config}/profilerconfig.json"):
        from trainshed.observe.place import profiler_folder

        profiler = profiler_folder(paths.output)
    # Samples of the machine alone, which every job has, are no reason for a page.
    steps = f"{profiler}/steps"
    for folder in (paths.metrics, paths.scraped_metrics, steps, f"{paths.output}/tensorboard"):
        try:
            if os.listdir(folder):
                return True
        except OSError:
            continue
    return False


# The file that the kubelet mounts at `terminationMessagePath`, for `kubectl describe pod` and who follows the job.
# Source: "Determine the Reason for Pod Failure" in Kubernetes' documentation; at most 4,096 bytes.
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LOG_BYTES = 4096


def leave(text: str, path: str = TERMINATION_LOG) -> None:
    """Writes the beginning of a failure's text there, in a pod; never raises. The file is a mount: it cannot be replaced."""
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)  # never made: without a kubelet there is nobody to read it
    except OSError:
        return
    try:
        os.write(fd, clip(text, TERMINATION_LOG_BYTES).encode("utf-8", "replace"))
    except OSError:
        pass
    finally:
        os.close(fd)
