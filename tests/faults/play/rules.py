"""What must hold of every case, whatever was done: no hang, one verdict, the right one, nothing left, no result lost."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from .schedule import SIGNALS, Fault, Schedule

OURS = re.compile(r"(toolkit|-packages)/trainshed/[^\n]*, line \d+|InternalError")
UNMET = re.compile(r"did not let the job start|did not come|not ready within")  # why a host gave up the meeting
GIVEN_UP = re.compile(r"ClusterError: algo-\d+ .*vanished: no sign of life")
SIGNAL_STATUS = {"TERM": "143", "INT": "130", "HUP": "129"}
STARTING = "Fatal Python error: init_"  # so Python ends, with 1, where SIGINT comes while it is starting
LOST_AFTER = 20.0  # seconds without a sign of life after which a host may count as lost
# What became of a fault: it came too late; it came; a stop signal came to a `train` with its handlers, or before it had any.
MISSED, DONE, HEARD, UNHEARD = "too late", "done", "heard", "before there was a handler"
TORCH = ("ddp", "elastic")  # launchers whose script imports torch
EARLY = ("birth", "joining", "launching", "installing", "start", "training")  # the script has long to go


@dataclass(frozen=True)
class End:
    """How one host ended. status: as the operating system has it, negative for a signal; None if it was never started.

    killed: its `train` got SIGKILL from us. temporary: what lay in its temporary folder. files: by path below /opt/ml.
    """

    name: str
    status: int | None
    killed: bool
    printed: str
    failure: str | None
    success: bool
    files: dict[str, bytes]
    temporary: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`success`, `stopped` (0 and neither file), the exit status, or `killed`."""
        if self.killed:
            return "killed"
        if self.status == 0:
            return "success" if self.success else "stopped"
        return str(self.status if self.status is None or self.status > 0 else 128 - self.status)

    @property
    def cause(self) -> str:
        """The first line of the failure file."""
        return (self.failure or "").partition("\n")[0]

    @property
    def short(self) -> str:
        """For a line on the console."""
        return f"{self.name} {self.verdict}" + (f": {self.cause}" if self.cause else "")


@dataclass(frozen=True)
class Judged:
    """A case that is over. ends: a line each. said: what happened when. kept: files for whoever looks into it, by path."""

    problems: list[str]
    ends: list[str]
    said: list[str]
    kept: dict[str, bytes]


@dataclass(frozen=True)
class Played:
    """A schedule and what came of it. left: processes that outlived it. done: what became of each fault."""

    schedule: Schedule
    ends: tuple[End, ...]
    hung: bool
    left: tuple[str, ...]
    said: tuple[str, ...]
    done: dict[int, str]


def problems(played: Played) -> list[str]:
    """What is wrong with the end of a case; [] where all is as it must be."""
    if played.hung:
        return [f"hangs: {', '.join(end.name for end in played.ends if end.status is None)} did not end within 60 s"]
    found = [f"left running: {command}" for command in played.left]
    for end in played.ends:
        found += [f"{end.name}: {problem}" for problem in _of_host(end, played)]
    return found + _verdict(played)


def _of_host(end: End, played: Played) -> list[str]:
    schedule, found = played.schedule, []
    if end.success and end.failure is not None:
        found.append("success and failure together")
    # A signal before Python has handlers ends it as Python itself does: without a word, or in the middle of an import.
    unborn = _unheard(end, played) and not played.schedule.init
    # torch's agent prints stacks of its own, from our launcher downwards.
    silent = unborn or schedule.launcher == "elastic"
    if OURS.search("" if silent else end.printed) or OURS.search(end.failure or ""):
        found.append("a traceback or an internal error of ours")
    if not end.killed and not unborn:
        if end.status != 0 and end.failure is None and not _full(schedule, end, "output"):
            found.append(f"status {end.status} without a failure file")
        if end.status == 0 and end.failure is not None:
            found.append("status 0 with a failure file")
    if end.success and not end.killed:
        for rank in range(schedule.ranks):
            name = f"model/model.{end.name}.{rank}"
            if not whole(end.files.get(name, b"")):
                found.append(f"success without a whole {name}")
    for name, data in end.files.items():
        if name.startswith("checkpoints/step-") and not name.endswith(".part") and not whole(data):
            found.append(f"{name} is not whole")
    if end.temporary and not end.killed:
        found.append(f"left in the temporary folder: {', '.join(end.temporary)}")
    return found


def _unheard(end: End, played: Played) -> bool:
    """Whether a stop signal came to a host's `train` before it had handlers."""
    faults = enumerate(played.schedule.faults)
    return any(played.done.get(number) == UNHEARD and f"algo-{fault.host + 1}" == end.name for number, fault in faults)


def whole(data: bytes) -> bool:
    """Whether a file is as rank.py wrote it."""
    return len(data) > 64 and hashlib.sha256(data[64:]).hexdigest().encode() == data[:64]


def _full(schedule: Schedule, end: End, place: str) -> bool:
    return any(fault.place == place and f"algo-{fault.host + 1}" == end.name for fault in schedule.faults)


def _verdict(played: Played) -> list[str]:
    schedule = played.schedule
    done = [(fault, played.done[n]) for n, fault in enumerate(schedule.faults) if played.done.get(n, MISSED) != MISSED]
    born = [end for end in played.ends if not end.killed and (schedule.init or not _unheard(end, played))]
    allowed = {"success"}.union(*(_allowed(fault, how, schedule) for fault, how in done))
    if _installs(schedule):
        allowed = (allowed - {"success"}) | {"1"}  # nobody answers pip, and it gives up in the end
    if len(done) == 1 and _leaves_no_success(*done[0], schedule):
        allowed.discard("success")
    if any(fault.kind == "INT" for fault, _ in done) and any(STARTING in end.printed for end in born):
        allowed.add("1")
    wanted = " or ".join(sorted(allowed))
    found = [f"{end.name} ended with {end.verdict}, not {wanted}: {end.cause}" for end in born if end.verdict not in allowed]
    verdicts = {end.verdict for end in born}
    # Hosts that no word reaches any more end as each of them sees it, but none of them with success.
    divided = any(fault.kind == "cut" and not fault.seconds for fault, _ in done)
    # A host that stood still for longer than the others wait for it, before the meeting, finds nobody to tell how it ends.
    unmet = any(UNMET.search(end.cause) for end in born)
    divided |= any(fault.seconds > LOST_AFTER for fault, _ in done) and unmet
    # Nor do hosts that have given up one which stands still for so long learn what it knows when it goes on.
    still = {f"algo-{fault.host + 1}" for fault, _ in done if fault.seconds > LOST_AFTER}
    divided |= any(GIVEN_UP.match(end.cause) is not None and end.cause.split()[1] in still for end in born)
    # Nor has anybody to tell it where the first host was killed before the meeting.
    headless = unmet and any(end.killed and end.name == "algo-1" for end in played.ends)
    divided |= headless
    divided &= not verdicts & {"success", "stopped"}
    if len(verdicts) > 1 and not divided:
        found.append(f"several verdicts: {', '.join(f'{end.name} {end.verdict}' for end in born)}")
    # Where the first host is gone, each of the others has counted the seconds itself.
    causes = {re.sub(r"for \d+ s", "for some s", end.cause) for end in born if end.failure is not None}
    apart = any(fault.kind in ("cut", "loss", "slow") or fault.seconds > LOST_AFTER for fault, _ in done)
    if len(causes) > 1 and not (apart or headless):
        found.append(f"several first causes: {sorted(causes)}")
    if len(done) == 1 and not found:
        told = [end for end in born if end.failure is not None]
        found += [f"{end.name} does not name the cause: {end.cause}" for end in told if not _says(*done[0], schedule, end)]
    return found


def _installs(schedule: Schedule) -> bool:
    """Whether pip waits for an index that does not answer."""
    return any(fault.moment == "installing" for fault in schedule.faults)


def _allowed(fault: Fault, how: str, schedule: Schedule) -> set[str]:
    """What the hosts that were not killed may end with, besides success."""
    if fault.kind in SIGNALS:
        # Without handlers, process 1 may not get the signal, and any other ends at once: that host never comes.
        stopped = {"stopped", SIGNAL_STATUS[fault.kind]}
        if schedule.launcher in TORCH and fault.moment in EARLY and schedule.handles:
            stopped.add("137")  # no handler runs while torch is imported, which can take longer than the grace
        return stopped if how == HEARD or schedule.init else {"69"}
    if fault.kind == "kill rank":
        return {"137"}
    if fault.kind in ("kill train", "kill host"):
        return {"69"}
    if fault.kind == "full":
        return {"1"}
    if fault.kind == "cut":
        return {"69"} if not fault.seconds or fault.seconds >= LOST_AFTER else set()
    if fault.kind == "loss":
        return {"69"} if fault.loss > 0.3 else set()
    return {"69"} if fault.seconds >= LOST_AFTER and schedule.hosts > 1 else set()


def _leaves_no_success(fault: Fault, how: str, schedule: Schedule) -> bool:
    """Whether the job cannot have succeeded: it was stopped or lost something with its script still running."""
    if fault.moment not in EARLY:
        return False
    if fault.kind in SIGNALS:
        return how == HEARD or not schedule.init
    return fault.kind in ("kill rank", "kill train", "kill host")


def _says(fault: Fault, how: str, schedule: Schedule, end: End) -> bool:
    """Whether a first cause is about what was done."""
    host, cause = f"algo-{fault.host + 1}" if schedule.hosts > 1 else "", end.cause
    if _installs(schedule) and end.verdict == "1":  # whatever was done, pip may have given up first
        return "requirements.txt" in cause
    if fault.kind in SIGNALS:
        named = f"SIG{fault.kind}" in cause
        return named or (how == UNHEARD and cause.startswith("ClusterError") and host in cause)
    if fault.kind == "kill rank":
        return "SIGKILL" in cause and host in cause
    if fault.kind in ("kill train", "kill host"):
        return host in cause and cause.startswith("ClusterError")
    if fault.kind == "full":
        return "No space left" in cause or "full" in cause
    return cause.startswith("ClusterError")
