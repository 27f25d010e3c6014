"""Rounds: the hosts of a job start their ranks again, together, after a failure.

Only jobs that ask for restarts have them (`trainshed_max_restarts`), and no elastic ones: there torch's agent restarts.

    run    a rank fails: all hosts stop theirs, as in every job
    rest   each host reports when nothing of its ranks is left; host 0 waits for all of them
    round  host 0 decides, and tells all: start again, as the next round, or it is over
    ended  when it is over, and only then, come the last reports and the verdict

Nothing starts before every host has rested, so no rank meets one of the round before. What is said of the ranks (that one
has failed, reports, letters) bears the number of its round, and is of no use in another one; a stop signal bears none: it
counts whenever it comes. A host that was lost, or was sent a stop signal, ends the job as it would without restarts.
"""

from __future__ import annotations

from trainshed.base.record import Record

from .messages import failure_of_json, failure_to_json, line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from trainshed.contract.outcome import Failure

    from .messages import Report


class Rest(Record):
    """The facts that host 0 knows when all ranks of the job have ended.

    failure: the first cause, None where no host failed.
    reports: of the hosts, by name; host 0's first.
    obstacle: why the ranks cannot be started again whatever the job allows, "" if they can.
    """

    failure: Failure | None
    reports: dict[str, Report]
    obstacle: str = ""


class Decision(Record):
    """The decision on what the hosts do next.

    again: whether all of them start their ranks again.
    failure: after which failure.
    done: how many restarts that makes.
    port: the job's port from then on, 0 if it stays.
    line: for the user of each host, "" for nothing.
    """

    again: bool = False
    failure: Failure | None = None
    done: int = 0
    port: int = 0
    line: str = ""

    def message(self, number: int) -> dict[str, Any]:
        """The decision as a message. number: of the round that it begins."""
        return {
            "type": "round",
            "number": number,
            "again": self.again,
            "failure": failure_to_json(self.failure),
            "done": self.done,
            "port": self.port,
            "line": self.line,
        }

    @staticmethod
    def of(message: Mapping[str, Any]) -> Decision:
        """The decision that a message holds. Raises ValueError."""
        done, port = message.get("done"), message.get("port")
        if not isinstance(done, int) or not isinstance(port, int) or not 0 <= port < 65_536:
            raise ValueError("a decision of no known form")
        failure = failure_of_json(message.get("failure"))
        again = message.get("again") is True
        if again and failure is None:
            raise ValueError("a decision of no known form")
        return Decision(again=again, failure=failure, done=done, port=port, line=line_of(message, "line"))


def of_this_round(message: Mapping[str, Any], number: int) -> bool:
    """Returns whether a message is about the ranks of round `number`, or about none in particular."""
    return bool(message.get("round", number) == number)
