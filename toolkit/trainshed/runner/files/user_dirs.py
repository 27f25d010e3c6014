"""Where runs lie, and what this user's commands keep between them. Known without knowing what a job is: `ls` starts fast."""

from __future__ import annotations

import os
from collections.abc import Mapping

RUNS = "runs"


def state_folder(environ: Mapping[str, str]) -> str:
    """What this user's commands keep between runs: `$XDG_STATE_HOME/trainshed`, else below `~/.local/state`."""
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return f"{state}/trainshed"
