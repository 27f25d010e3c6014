"""Values as JSON that every reader takes: NaN and infinities, which JSON does not have, as texts.

The texts are those of the metric files: `NaN`, `Infinity`, `-Infinity`, which `float` and JavaScript's `Number` read.
"""

from __future__ import annotations

import json
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def as_json(value: object) -> str:
    """A value as indented JSON, with a newline at its end."""
    return json.dumps(finite(value), indent=2, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """A value with each number that is not finite as a text."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return _spelled(value) if isinstance(value, float) and not math.isfinite(value) else value


def _spelled(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
