"""How `trainshed plan` asks the script to be planned."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from trainshed.contract.wire.variables import PLAN_HOW


@dataclass(frozen=True)
class How:
    """What is asked beside the settings of a job.

    count: whether operations are counted instead of timed.
    ranks: to choose stages and replicas for; 0 where the settings say them.
    gbits: Gbit/s between ranks, where degrees are chosen.
    """

    count: bool = False
    ranks: int = 0
    gbits: float = 16.0

    def text(self) -> str:
        """For the variable that the script's process reads."""
        return json.dumps(asdict(self))


def how_asked() -> How:
    """What this process was asked for."""
    return How(**json.loads(os.environ.get(PLAN_HOW) or "{}"))
