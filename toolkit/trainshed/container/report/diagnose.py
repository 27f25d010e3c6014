"""Derives the failure from an outcome: which rank failed first, how, where, and what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from functools import partial

from trainshed.base.errors import (
    EXIT_CANNOT_EXECUTE,
    EXIT_INTERNAL,
    EXIT_NOT_FOUND,
    EXIT_USER,
    LimitError,
    TrainshedError,
    exit_status,
    shorten,
)
from trainshed.base.secrets import mask_text
from trainshed.contract.outcome import Failure, clip

from .exception import AGENT_LINE, Raised, find_exception, root_cause
from .hints import Context, hint_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

    from ..supervisor.launch_plan import Outcome, ProcessResult, StartError

    Mask = Callable[[str], str]

TAIL_LINES = 20
LONG_LINE = 2000  # characters
# What ranks print when another rank failed.
_SECONDARY = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|ncclRemoteError|ncclSystemError|[Rr]emote process|"
    r"Socket closed|recvBytes|failed to recv|Connection refused|EOF|[Ww]atchdog|communicator was aborted|DistNetworkError|"
    r"rank \d+ is gone: its process has ended"  # compat.horovod_api
)
# How much a process may print after the exception that ended it. Python exits with 1 after one, and libraries then print
# more while they shut down; with any other status an exception further up is probably one that the script handled.
LINES_AFTER_EXCEPTION = {1: 200}
FEW_LINES = 20
_SIGNALS = {
    "SIGSEGV": "segmentation fault in native code",
    "SIGBUS": "bus error, most often shared memory that is full",
    "SIGABRT": "aborted by native code",
    "SIGFPE": "arithmetic error in native code",
    "SIGILL": "illegal instruction",
    "SIGKILL": "which cannot be caught",
    "SIGTERM": "asked to stop",
    "SIGINT": "interrupted",
    "SIGHUP": "hung up",
    "SIGPIPE": "its output was closed",
}


def signal_name(number: int) -> str:
    """`SIGTERM` for 15; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def diagnose(
    outcome: Outcome, job: TrainingJob, cluster: Cluster, code_folder: str, oom_kills: int, secrets: tuple[str, ...]
) -> Failure | None:
    """Returns the failure of an outcome, masked; None if every process exited with 0."""
    result = first_failure(outcome, code_folder)
    if result is None:
        return None
    mask = partial(mask_text, secrets=secrets)
    # Before anything is cut off: half a secret would not be recognised.
    result = result.replace(tail=_masked(result.tail, mask), output_tail=_masked(result.output_tail, mask))
    text = result.tail.decode("utf-8", "replace")
    rank = result.spec.rank
    cause = root_cause(text) if rank is None else None
    if cause is not None:  # the process is torchrun's agent, which has ranks of its own
        rank, returncode, text = cause
        result = result.replace(returncode=returncode, tail=text.encode())
    raised = _recorded_exception(result, code_folder, mask) or fatal_exception(result, code_folder)
    cut_off = raised is not None and not outcome.stop_signal and _died_of_our_stop(result)
    if cut_off:
        result = result.replace(returncode=EXIT_USER)  # as Python would have exited, had we left it the time
    lines = searchable(result.tail).splitlines()
    if raised and raised.end:
        around = lines[max(0, raised.start - FEW_LINES // 2) :]
    else:
        around = [*lines[-2 * FEW_LINES :], *searchable(result.output_tail).splitlines()[-FEW_LINES:]]
    context = Context(
        text=raised.traceback or raised.text if raised else "\n".join(lines[-FEW_LINES:]),
        around="\n".join(around),
        job=job,
        cluster=cluster,
        code_folder=code_folder,
        signal=result.signal,
        returncode=result.returncode,
        oom_kills=oom_kills,
        stop_signal=outcome.stop_signal if result.stopped or outcome.stop_at <= result.ended else 0,
        waited=result.ended - outcome.stop_at,
        killed_by_us=bool(outcome.killed) and result.returncode == -signal.SIGKILL,
    )
    who = result.spec.helper or "the script"
    if rank is not None and not result.spec.helper:
        who = f"rank {rank} on {cluster.current_host}"
    elif len(cluster.hosts) > 1:
        who += f" on {cluster.current_host}"
    interrupted = bool(context.stop_signal) and (raised is None or raised.name in ("KeyboardInterrupt", "SystemExit"))
    stopped = bool(outcome.stopped_by) and result.stopped and raised is None
    return Failure(
        kind=_kind(result, interrupted, stopped),
        summary=f"{who} {'failed' if cut_off else _how(result, context)}{_what(raised, text, not result.spec.runs_script)}",
        exit_code=exit_status(result.returncode),
        place=raised.place if raised else "",
        hint=hint_for(context),
        details=clip(raised.traceback, 16_000) if raised else "",
        tail=_last_lines(result, raised),
        host=cluster.current_host,
        rank=rank,
        signal=signal_name(result.signal) if result.signal else "",
        at=_moment(result, raised),
    ).masked(mask)


def _masked(output: bytes, mask: Mask) -> bytes:
    return mask(output.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _kind(result: ProcessResult, interrupted: bool, stopped: bool) -> str:
    if interrupted or stopped:
        return "Interrupted" if interrupted else "Stopped"
    return "UserError" if result.spec.runs_script else "LaunchError"


def is_secondary(failure: Failure) -> bool:
    """Returns whether a failure only reports that another rank is gone."""
    return bool(_SECONDARY.search(failure.summary))


def searchable(output: bytes) -> str:
    """Output for regular expressions: very long lines are cut to their two ends, since searching them would be slow."""
    lines = output.decode("utf-8", "replace").splitlines()
    return "\n".join(line if len(line) <= LONG_LINE else line[: LONG_LINE // 2] + line[-LONG_LINE // 2 :] for line in lines)


def fatal_exception(result: ProcessResult, code_folder: str) -> Raised | None:
    """The exception that ended a process; None if it printed no exception or continued after the last one."""
    raised = find_exception(searchable(result.tail), code_folder)
    if raised and raised.after <= LINES_AFTER_EXCEPTION.get(result.returncode, FEW_LINES):
        return raised
    return None


def _died_of_our_stop(result: ProcessResult) -> bool:
    return result.stopped and result.signal in (signal.SIGTERM, signal.SIGKILL)


def _moment(result: ProcessResult, raised: Raised | None) -> float:
    """Time of the failure's first sign, its traceback or the exit, in seconds since the start."""
    return result.ended if raised is None or result.traceback_at is None else min(result.traceback_at, result.ended)


def first_failure(outcome: Outcome, code_folder: str) -> ProcessResult | None:
    """Returns the process that failed first.

    The order of exits is misleading: a rank that raised an exception may take longer to end than its peers take to notice.
    So the time at which its traceback began to arrive counts. Ranks that only report a lost peer rank behind those with
    another reason, and ranks that we stopped come last.
    """
    failed = [result for result in outcome.results if result.returncode != 0]
    if len(failed) < 2:
        return failed[0] if failed else None

    def key(result: ProcessResult) -> tuple[int, float]:
        raised = fatal_exception(result, code_folder)
        said = raised.text if raised else "\n".join(_last_lines(result).splitlines()[-FEW_LINES:])
        moment = _moment(result, raised)
        if outcome.stop_signal:
            return 0, moment
        if _died_of_our_stop(result):
            return 3 if raised is None else 1, moment
        return 2 if _SECONDARY.search(said) else 0, moment

    return min(failed, key=key)


def _how(result: ProcessResult, context: Context) -> str:
    if result.signal:
        name = signal_name(result.signal)
        if context.oom_kills and result.signal == signal.SIGKILL:
            return "was killed by the kernel: out of memory"
        if context.stop_signal and context.killed_by_us:
            return f"was stopped by {signal_name(context.stop_signal)} and killed at the end of the grace period"
        if context.stop_signal == result.signal:
            return f"was stopped by {name}"
        return f"was killed by {name}" + (f" ({_SIGNALS[name]})" if name in _SIGNALS else "")
    if context.stop_signal:
        return f"was stopped by {signal_name(context.stop_signal)} and exited with {result.returncode}"
    return f"exited with {result.returncode}"


def _what(raised: Raised | None, text: str, helper: bool) -> str:
    """The exception, or the last line printed; for a helper all that it printed, which is short."""
    if raised is not None and raised.text:
        return f": {raised.text}"
    lines = [line.strip() for line in text.splitlines() if line.strip(" \t-")]  # Open MPI rules its messages off
    if helper and lines:
        return f": {shorten(' '.join(lines), 300)}"
    lines = [line for line in lines if not AGENT_LINE.match(line)]
    last = lines[-1] if lines else ""
    return f"; its last line: {shorten(last, 300)}" if last else ", and printed nothing"


def _recorded_exception(result: ProcessResult, code_folder: str, mask: Mask) -> Raised | None:
    """Reads the exception that torch's `@record` wrote for this rank, if the script uses it."""
    path = result.spec.env.get("TORCHELASTIC_ERROR_FILE", "")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            message = json.load(file)["message"]
        callstack = str(message["extraInfo"]["py_callstack"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    raised = find_exception(mask(callstack), code_folder)
    return raised.replace(start=0, end=0) if raised else None  # these lines are not part of the output


def _last_lines(result: ProcessResult, shown: Raised | None = None) -> str:
    """The last lines that the process printed, without the traceback that the report shows already."""
    lines = result.tail.decode("utf-8", "replace").splitlines()
    if shown and shown.traceback and shown.end:
        lines[shown.end - len(shown.traceback.splitlines()) : shown.end] = []
    return "\n".join(line if len(line) <= 500 else line[:497] + "..." for line in lines[-TAIL_LINES:]).strip("\n")


def failure_of_error(error: BaseException, host: str, secrets: tuple[str, ...]) -> Failure:
    """The failure for an error outside the script, masked: an explained one, or an internal error of trainshed."""
    mask = partial(mask_text, secrets=secrets)
    if not isinstance(error, TrainshedError):
        error = limit_of(error) or error
    if isinstance(error, TrainshedError):
        return Failure(
            kind=type(error).__name__,
            summary=error.message,
            exit_code=error.exit_code,
            hint=error.hint,
            details=error.details,
            host=host,
        ).masked(mask)
    import traceback  # slow to load, and only needed here

    return Failure(
        kind="InternalError",
        summary=f"trainshed itself failed: {type(error).__name__}: {shorten(mask(str(error)), 300)}",
        exit_code=EXIT_INTERNAL,
        hint="this is a defect of trainshed; please report it with the details below",
        details="".join(traceback.format_exception(error)),
        host=host,
    ).masked(mask)


def failure_of_start(error: StartError, host: str, secrets: tuple[str, ...]) -> Failure:
    """The failure for a program that the operating system did not start, masked."""
    program, number = error.spec.argv[0], error.error.errno
    if "/" in program:
        program = os.path.normpath(os.path.join(error.spec.cwd, program))
    hints = {
        "cwd": "the working directory does not exist or cannot be entered",
        7: "the hyperparameters or variables are longer than the system allows; pass large values in a file",
        8: "it was built for another processor architecture, or is a script without a `#!` line",
        13: f"make it executable: chmod +x {program}",
        2: f"{os.path.basename(program)} is not in the image, or the interpreter of its `#!` line is not",
    }
    place = error.spec.cwd if error.stage == "cwd" else program
    limit = of_number(number or 0)
    if limit is not None and error.stage != "cwd":
        return Failure(
            kind=type(limit).__name__,
            summary=mask_text(f"{place} cannot be started: {limit.message}", secrets),
            exit_code=limit.exit_code,
            hint=limit.hint,
            host=host,
        )
    return Failure(
        kind="LaunchError",
        summary=f"{place} cannot be started: {error.error.strerror}",
        exit_code=EXIT_NOT_FOUND if number == 2 else EXIT_CANNOT_EXECUTE if number in (8, 13) else EXIT_USER,
        hint=hints.get(error.stage) or hints.get(number or 0, ""),
        host=host,
    ).masked(partial(mask_text, secrets=secrets))


def limit_of(error: BaseException) -> LimitError | None:
    """The limit that an error, or the one that it comes from, tells of; None where it tells of none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError):
            return _memory()
        if isinstance(seen, RuntimeError) and "can't start new thread" in str(seen):
            return _processes()
        if isinstance(seen, OSError) and seen.errno is not None:
            return of_number(seen.errno, str(seen.filename or ""))
        seen = seen.__cause__ or seen.__context__
    return None


def of_number(number: int, path: str = "") -> LimitError | None:
    """The limit that an error number of the kernel tells of.

    Args:
        path: the file that could not be opened or written, "" if none is known.
    """
    if number == errno.EMFILE:
        return LimitError(
            f"the limit of {os.sysconf('SC_OPEN_MAX')} open files is reached: train needs three for each rank",
            hint="raise it: docker run --ulimit nofile=65536, or `ulimit -n 65536`",
        )
    if number == errno.ENFILE:
        return LimitError(
            "the limit of open files of the whole machine is reached",
            hint="end what keeps so many open, or raise it: sysctl fs.file-max",
        )
    if number == errno.ENOMEM:
        return _memory()
    if number == errno.EAGAIN:
        return _processes()
    if number in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk quota of this user is used up" if number == errno.EDQUOT else "the disk is full"
        return LimitError(f"{what}{f': {path}' if path else ''}", hint="free some space there, or mount a larger disk")
    if number == errno.EFBIG:
        return LimitError(
            f"the limit of the size of a file is reached{f': {path}' if path else ''}", hint="raise `ulimit -f`"
        )
    return None


def _memory() -> LimitError:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    limited = soft != resource.RLIM_INFINITY
    return LimitError(
        "there is no memory left for train itself" + (f": it may have {soft >> 20} MiB of addresses" if limited else ""),
        hint="raise `ulimit -v`" if limited else "give the container more memory: docker run --memory; or train with less",
    )


def _processes() -> LimitError:
    return LimitError(
        "the limit of processes and threads is reached",
        hint="raise it: docker run --pids-limit, or `ulimit -u`; or end what else runs there",
    )
