"""The message of `train` to a rank whose steps are measured."""

from __future__ import annotations

import json

from trainshed.base.record import Record

from .variables import STEP_PROFILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class StepProfile(Record):
    """
    folder: the profiler's. host: this host's name.
    cpus: that the host has for all its ranks. ranks: of this host.
    trace_start, trace_steps: the first step that each rank records in detail, from 0, and how many; 0 steps for none.
    """

    folder: str
    host: str
    cpus: int
    ranks: int
    trace_start: int = 0
    trace_steps: int = 0

    def to_text(self) -> str:
        """For the variable."""
        return json.dumps({name: getattr(self, name) for name in self._fields})


def step_profile_of(environ: Mapping[str, str]) -> StepProfile | None:
    """Reads what the variable says; None where it is absent or not of ours."""
    try:
        return StepProfile(**json.loads(environ.get(STEP_PROFILE, "")))
    except (ValueError, TypeError):
        return None
