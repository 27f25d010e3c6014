"""Reads what profilerconfig.json asks of the framework's profiler: a trace of some steps, and what `train` has no answer to.

Source: the names are those of `sagemaker` 2 (`sagemaker.debugger.FrameworkProfile`) and `smdebug` 1.0.34
(`profiler_config_parser`): each `...ProfilingConfig` in `ProfilingParameters` is a text that holds an object, whose
`StartStep` counts from 0; `NumSteps` is 1 where nobody says it. The names' case does not matter.
"""

from __future__ import annotations

import json

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOST_STEPS = 1000  # of a trace: some megabytes each
_DETAILED = "detailedprofilingconfig"
_ENDING = "profilingconfig"


class TracedSteps(Record):
    """start: the first step that is recorded, from 0. steps: how many."""

    start: int
    steps: int


def framework_profile(parameters: Mapping[str, Any]) -> tuple[TracedSteps | None, str]:
    """The steps that are to be recorded, None for none; and what is asked for in vain, as a sentence, "" for nothing.

    Args:
        parameters: `ProfilingParameters`.
    """
    asked = {name: value for name, value in parameters.items() if name.lower().endswith(_ENDING) and _is_asked(value)}
    detailed = next((name for name in asked if name.lower() == _DETAILED), "")
    steps = _steps(asked[detailed]) if detailed else None
    vain = sorted(name for name in asked if name != detailed)
    said = []
    if vain:
        said.append(f"{', '.join(vain)} {'is' if len(vain) == 1 else 'are'} not supported")
    if detailed and steps is None:
        said.append(f"{detailed} is ignored: it must hold StartStep, from 0, and NumSteps, from 1 to {MOST_STEPS}")
    return steps, "; ".join(said)


def _is_asked(value: object) -> bool:
    return value not in (None, "", {}) and str(value).strip() != "{}"


def _steps(value: object) -> TracedSteps | None:
    try:
        fields: Any = json.loads(value) if isinstance(value, str) else value
        found = {name.lower(): field for name, field in fields.items() if field is not None}
        if not {"startstep", "numsteps"} & set(found):  # a range of time
            return None
        wanted = TracedSteps(int(found.get("startstep", 0)), int(found.get("numsteps", 1)))
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return wanted if wanted.start >= 0 and 0 < wanted.steps <= MOST_STEPS else None
