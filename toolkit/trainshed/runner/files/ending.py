"""How hosts ended, and what that means for the job: values that the watch makes and the other rooms read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostEnd:
    """How one host ended. code: exit status. asked: whether the runner had asked it to stop before."""

    name: str
    code: int
    note: str = ""
    asked: bool = False


@dataclass(frozen=True)
class Ending:
    """How all hosts ended.

    hosts: in the order in which they ended.
    stop_signal: the first stop signal that the runner received, 0 without one.
    seconds: from the start of the hosts to the end of the last one.
    trouble: what failed on the runner's side, like a Pipe channel.
    unread: what could not be read of channels that are file systems; scripts that met it have failed with an error of I/O.
    lost: what could not be brought home from hosts elsewhere.
    timed_out: the job's time was over; waited: its time with all interruptions was.
    interrupted: spot capacity was taken away.
    killed: hosts were killed, because their grace was over or the user would not wait.
    """

    hosts: tuple[HostEnd, ...]
    stop_signal: int = 0
    timed_out: bool = False
    killed: bool = False
    seconds: float = 0.0
    waited: bool = False
    interrupted: bool = False
    trouble: str = ""
    unread: str = ""
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunEnd:
    """How the job ended.

    status, secondary: TrainingJobStatus and SecondaryStatus of the platform's DescribeTrainingJob.
    exit_code: what the runner exits with: the failed host's, 128 + n after stop signal n, 124 when the time was over.
    failed_host: the host that failed first, "" if none failed.
    reason: why it failed, at most 1,024 bytes; for a stopped job what stopped it.
    """

    status: str
    secondary: str
    exit_code: int
    failed_host: str = ""
    reason: str = ""
