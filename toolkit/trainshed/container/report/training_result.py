"""How a job ended on this host, as its report tells it."""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.outcome import Failure

    from ..notices import Interruption
    from ..supervisor.launch_plan import Outcome


class TrainingResult(Record):
    """How a job ended on this host: by a failure, by an interruption, or by neither (success).

    outcome: how the ranks of the last attempt ended, None where none was started.
    """

    failure: Failure | None = None
    interruption: Interruption | None = None
    outcome: Outcome | None = None
