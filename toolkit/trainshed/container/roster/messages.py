"""The messages between hosts, one JSON object a line: reports, verdicts, failures, the job's token, and the time limits."""

from __future__ import annotations

import hashlib
import json

from trainshed.base.errors import ClusterError
from trainshed.base.record import Record
from trainshed.contract.outcome import Failure
from trainshed.contract.wire.variables import ROSTER_TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

ALIVE_EVERY = 1.0  # seconds between two signs of life
GONE_AFTER = 4.0  # seconds after which a host is lost whose connection was closed and that has not come back
AWAY = 2.0  # seconds between two turns after which this process was suspended itself, and could not hear any host
LOST_AFTER = 24.0  # seconds of silence after which a host is lost; a network outage of 20 s does not end the job
VERDICT_AFTER = 22.0  # seconds that host 0 waits for the reports of living hosts once the job is stopping
TELLING_SECONDS = 15.0  # seconds that a host that cannot start stays to tell the others
FAILURE_BYTES = 32_000  # a failure's long parts are cut to this before they travel


class Report(Record):
    """How one host's ranks ended.

    state: `done`, `failed`, `stopped` (by the roster) or `interrupted` (by a stop signal to this host).
    failure: why, for `failed`.
    age: seconds since the failure's first sign (the traceback, the exit).
    secondary: whether the failure only says that another rank went away.
    """

    state: str
    failure: Failure | None = None
    age: float = 0.0
    secondary: bool = False

    def message(self) -> dict[str, Any]:
        """The report as a message."""
        return {
            "type": "ended",
            "state": self.state,
            "failure": failure_to_json(self.failure),
            "age": self.age,
            "secondary": self.secondary,
        }

    @staticmethod
    def of(message: Mapping[str, Any]) -> Report:
        """The report that a message holds. Raises KeyError, TypeError, ValueError."""
        return Report(
            state=str(message["state"]),
            failure=failure_of_json(message["failure"]),
            age=float(message["age"]),
            secondary=bool(message["secondary"]),
        )


class FailedElsewhere(ClusterError):
    """Another host failed before the job could start. failure: its reason, which all hosts report."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary, hint=failure.hint)
        self.failure = failure


class Verdict(Record):
    """How the whole job ended: `failure` is its first cause, None if no host failed."""

    failure: Failure | None = None


def failure_to_json(failure: Failure | None) -> dict[str, Any] | None:
    """A failure as JSON, its long parts cut."""
    if failure is None:
        return None
    data = failure.plain()
    for name in ("details", "tail"):
        data[name] = data[name][-FAILURE_BYTES:]
    return data


def failure_of_json(data: Mapping[str, Any] | None) -> Failure | None:
    """The inverse of `failure_to_json`. Raises TypeError, ValueError."""
    if data is None:
        return None
    known = {name: data[name] for name in Failure._fields if name in data}
    return Failure(**{**known, "exit_code": int(known["exit_code"])})


def job_token(job: TrainingJob, cluster: Cluster, environ: Mapping[str, str]) -> str:
    """A digest of what only hosts of this job know: the variable ROSTER_TOKEN where it is set, and the job itself.

    Hosts that were started with different hyperparameters, programs or host lists have different tokens.
    """
    same = [
        environ.get(ROSTER_TOKEN, ""),
        job.name,
        job.program,
        list(cluster.hosts),
        sorted((key, str(value)) for key, value in job.hyperparameters.user.items()),
    ]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()
