"""The messages between hosts, one JSON object a line: reports, verdicts, failures; and the time limits.

Whoever sends them has proven the job's key (`proof`). They are checked all the same: a host that sends anything else loses
its connection, and the job goes on.
"""

from __future__ import annotations

import signal

from trainshed.base.errors import EXIT_SIGNAL_BASE, ClusterError
from trainshed.base.record import Record
from trainshed.contract.outcome import Failure
from trainshed.machine.signals import STOP_SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ALIVE_EVERY = 1.0  # seconds between two signs of life
GONE_AFTER = 4.0  # seconds after which a host is lost whose connection was closed and that has not come back
AWAY = 2.0  # seconds between two turns after which this process was suspended itself, and could not hear any host
LOST_AFTER = 24.0  # seconds of silence after which a host is lost; a network outage of 20 s does not end the job
HANDOVER_AFTER = 27.0  # seconds of silence after which an elastic job's leader is lost: it has given up its hosts before
SETTLE_SECONDS = 6.0  # that a new leader waits for hosts that do not come, and they for one that does not answer
VERDICT_AFTER = 22.0  # seconds that host 0 waits for the reports of living hosts once the job is stopping
TELLING_SECONDS = 15.0  # seconds that a host that cannot start stays to tell the others
STOPPED_TELLING_SECONDS = 8.0  # the same for one that was sent a stop signal: `docker stop` gives it ten, if nothing is said
LONGEST_TEXT = 1 << 18  # characters
LONGEST_LINE = 1000
FAILURE_BYTES = 32_000  # a failure's long parts are cut to this before they travel


STATES = ("done", "failed", "stopped", "interrupted")


class Report(Record):
    """How one host's ranks ended.

    state: `done`, `failed`, `stopped` (by the roster) or `interrupted` (by a stop signal to this host).
    failure: why, for `failed`; how its ranks ended, for `stopped` and `interrupted` (None where they ended well).
    age: seconds since the failure's first sign (the traceback, the exit).
    secondary: whether the failure only says that another rank went away.
    cause: why the host stopped its ranks by itself: it had lost host 0.
    early: host and reason, where its ranks ended well, but only because they were asked to stop; "" where they had ended by
        themselves.
    again: whether its ranks may be started again together with those of the other hosts (`rounds`).
    newest: the highest step of a checkpoint on that host, -1 for none.
    progressed: whether it has come since its ranks were last started.
    ports: of the ports that the job may use next, those that are free there.
    """

    state: str
    failure: Failure | None = None
    age: float = 0.0
    secondary: bool = False
    cause: Failure | None = None
    early: str = ""
    again: bool = False
    newest: int = -1
    progressed: bool = False
    ports: tuple[int, ...] = ()

    @property
    def stop_signal(self) -> int:
        """For `interrupted`, the signal; SIGTERM where the ranks ended with another exit status than that of a signal."""
        code = self.failure.exit_code if self.failure is not None else 0
        return code - EXIT_SIGNAL_BASE if code - EXIT_SIGNAL_BASE in STOP_SIGNALS else signal.SIGTERM

    def message(self) -> dict[str, Any]:
        """The report as a message."""
        return {
            "type": "ended",
            "state": self.state,
            "failure": failure_to_json(self.failure),
            "age": self.age,
            "secondary": self.secondary,
            "cause": failure_to_json(self.cause),
            "early": self.early,
            "again": self.again,
            "newest": self.newest,
            "progressed": self.progressed,
            "ports": list(self.ports),
        }

    @staticmethod
    def of(message: Mapping[str, Any]) -> Report:
        """The report that a message holds. Raises ValueError."""
        state = text_of(message, "state")
        age, newest, ports = message.get("age"), message.get("newest", -1), message.get("ports", [])
        if state not in STATES or not isinstance(age, (int, float)):
            raise ValueError("a report of no known form")
        if not isinstance(newest, int) or not isinstance(ports, list) or not all(isinstance(one, int) for one in ports):
            raise ValueError("a report of no known form")
        return Report(
            state=state,
            failure=failure_of_json(message.get("failure")),
            age=max(0.0, min(float(age), 1e9)),
            secondary=message.get("secondary") is True,
            cause=failure_of_json(message.get("cause")),
            early=line_of(message, "early"),
            again=message.get("again") is True,
            newest=newest,
            progressed=message.get("progressed") is True,
            ports=tuple(ports),
        )


class FailedElsewhere(ClusterError):
    """Another host failed before the job could start. failure: its reason, which all hosts report."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary, hint=failure.hint)
        self.failure = failure


class JobVerdict(Record):
    """How the whole job ended.

    failure: the first cause of its failure, None if no host failed.
    stopped: host and reason, if ranks of any host ended well, but only because they were asked to stop. Then the job has
        neither failed nor succeeded, on all hosts alike: the result of that host is not whole.
    """

    failure: Failure | None = None
    stopped: str = ""

    def message(self) -> dict[str, Any]:
        """The verdict as a message."""
        return {"type": "verdict", "failure": failure_to_json(self.failure), "stopped": self.stopped}


def failure_to_json(failure: Failure | None) -> dict[str, Any] | None:
    """A failure as JSON, its long parts cut."""
    if failure is None:
        return None
    data = failure.plain()
    for name in ("details", "tail"):
        data[name] = data[name][-FAILURE_BYTES:]
    return data


def failure_of_json(data: object) -> Failure | None:
    """The inverse of `failure_to_json`. Raises ValueError."""
    if data is None:
        return None
    if not isinstance(data, dict):
        raise ValueError("a failure of no known form")
    texts = {name: text_of(data, name) for name in _TEXTS if name in data}
    code, rank, at = data.get("exit_code"), data.get("rank"), data.get("at", 0.0)
    if (
        not {"kind", "summary"} <= texts.keys()
        or not isinstance(code, int)
        or not 0 <= code < 256
        or not (rank is None or isinstance(rank, int))
        or not isinstance(at, (int, float))
    ):
        raise ValueError("a failure of no known form")
    return Failure(**texts, exit_code=int(code), rank=rank, at=float(at))


_TEXTS = ("kind", "summary", "place", "hint", "tail", "details", "host", "signal")


def text_of(message: Mapping[str, Any], name: str) -> str:
    """A text of a message, "" where there is none. Raises ValueError for anything else."""
    value = message.get(name, "")
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError(f"{name} is not a text")
    return value


def signal_of(message: Mapping[str, Any]) -> int:
    """The number of the stop signal that a message names, 0 where it names none. Raises ValueError."""
    number = message.get("signal", 0)
    if number not in (0, *STOP_SIGNALS):
        raise ValueError("a stop signal of no known number")
    return int(number)


def line_of(message: Mapping[str, Any], name: str) -> str:
    """The same, as one short line that a terminal can show. Raises ValueError."""
    text = text_of(message, name)[:LONGEST_LINE]
    return "".join(letter if letter.isprintable() else " " for letter in text)
