"""From how the hosts ended to how the job did: its status, its exit status, and the reason."""

from __future__ import annotations

import re
import signal
from typing import Any

from trainshed.base.errors import EXIT_TIMEOUT, EXIT_USER
from trainshed.base.files import open_plain
from trainshed.base.units import duration

from ..files.ending import Ending, HostEnd, RunEnd
from ..files.run import HostTree, Run
from ..job.least_hosts import least_hosts
from .records import failure_of, record_of

# What a host prints when another one failed.
_LOST_PEER = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|ncclRemoteError|ncclSystemError|[Rr]emote process|"
    r"Socket closed|recvBytes|failed to recv|Connection refused|no such host name"
)

# What a script is told by a file system that cannot read (EIO), or whose program has ended (ENOTCONN, ECONNABORTED).
_IO_ERROR = re.compile(r"Input/output error|Transport endpoint is not connected|Software caused connection abort")


def judge(run: Run, ending: Ending) -> RunEnd:
    """How the job ended, from its hosts' exit statuses, records and failure files."""
    failed = first_failure(run, ending)
    if failed is not None:
        note = f" ({failed.note})" if failed.note else ""
        reason = failure_of(_host(run, failed.name))
        reason = reason or f"{failed.name} exited with {failed.code}{note}; {_last_line(run.log(failed.name))}"
        if cause := ending.trouble or (ending.unread if _IO_ERROR.search(reason) else ""):
            reason = f"{cause}\n{reason}"
        return RunEnd("Failed", "Failed", failed.code, failed.name, reason)
    if ending.lost:
        return RunEnd("Failed", "Failed", EXIT_USER, reason="; ".join(ending.lost))
    if ending.trouble:
        return RunEnd("Failed", "Failed", EXIT_USER, reason=ending.trouble)
    if ending.waited:
        return RunEnd(
            "Stopped", "MaxWaitTimeExceeded", EXIT_TIMEOUT, reason="it reached its time limit, interruptions included"
        )
    if ending.timed_out:
        limit = duration(run.job.max_runtime_seconds)
        return RunEnd("Stopped", "MaxRuntimeExceeded", EXIT_TIMEOUT, reason=f"it reached its time limit of {limit}")
    if ending.stop_signal:
        name = signal.Signals(ending.stop_signal).name
        how = f"{name}, killed" if ending.killed else name
        return RunEnd("Stopped", "Stopped", 128 + ending.stop_signal, reason=f"stopped by {how}")
    if any(_stopped_itself(run, end) for end in ending.hosts):
        return RunEnd("Stopped", "Stopped", 128 + signal.SIGTERM, reason="a host was sent a stop signal")
    return RunEnd("Completed", "Completed", 0)


def went_on_without(run: Run, ending: Ending) -> tuple[HostEnd, ...]:
    """Hosts that an elastic job has lost, if it has succeeded without them; () otherwise.

    The hosts that are left succeed only if their leader says so, which counts on what is left being enough.
    """
    least = least_hosts(run.job)
    good = [end for end in ending.hosts if not end.code and not _stopped_itself(run, end)]
    return tuple(end for end in ending.hosts if end.code) if 0 < least <= len(good) else ()


def first_failure(run: Run, ending: Ending) -> HostEnd | None:
    """The end of the host that failed first; None where the job has succeeded without it.

    `train`'s hosts agree on it among themselves and all name it in their records. With other images, or where there was
    no time to agree, it is the first to end that was not stopped by us, nor lost its peer if another really failed.
    """
    if went_on_without(run, ending):
        return None
    failed = [end for end in ending.hosts if end.code and not (end.asked and _was_stopped(run, end, ending))]
    failed = [end for end in failed if not _stopped_itself(run, end)]

    def lost_peer(end: HostEnd) -> bool:
        return bool(_LOST_PEER.search(str(_failure(run, end).get("summary", ""))))

    first = min(failed, key=lost_peer, default=None)  # `min` keeps the first of equals, and the first ended first
    if first is None:
        return None
    named = _failure(run, first).get("host")
    return next((end for end in ending.hosts if end.name == named and end.code), first)


def _host(run: Run, name: str) -> HostTree:
    return next(host for host in run.hosts if host.name == name)


def _failure(run: Run, end: HostEnd) -> dict[str, Any]:
    """The failure in a host's record, {} where it has none."""
    return record_of(_host(run, end.name)).get("failure") or {}


def _was_stopped(run: Run, end: HostEnd, ending: Ending) -> bool:
    """Whether a host that we had asked to stop ended for that reason, and not because of an exception meanwhile."""
    if ending.stop_signal or ending.timed_out:
        return True
    return _failure(run, end).get("kind", "Interrupted") in ("Interrupted", "Stopped")


def _stopped_itself(run: Run, end: HostEnd) -> bool:
    """Whether the host was stopped from outside, for example by `docker stop`."""
    return record_of(_host(run, end.name)).get("state") == "Stopped"


def _last_line(path: str) -> str:
    try:
        with open_plain(path, links=False) as file:
            lines = file.read()[-8192:].decode("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its last line: {last[:300]}" if last else "it printed nothing"
