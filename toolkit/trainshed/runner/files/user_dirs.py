"""The folders of runs, and of what this user's commands keep. Known without knowing what a job is: `ls` starts fast."""

from __future__ import annotations

import os
from collections.abc import Mapping

RUNS = "runs"


def state_folder(environ: Mapping[str, str]) -> str:
    """The folder in which this user's commands keep state: `$XDG_STATE_HOME/trainshed`, else below `~/.local/state`."""
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return f"{state}/trainshed"
