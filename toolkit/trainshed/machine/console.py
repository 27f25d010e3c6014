"""The console of `train` itself: one line at a time on stderr, so that stdout is the script's alone."""

from __future__ import annotations

import os
import select

from trainshed.base.voice import Voice

_patience = 5.0  # seconds that a message waits for a reader; 0 after the first one without a reader


def write(message: str) -> None:
    """Prints `trainshed: line` for each line of the message; never raises.

    A run speaks through a `Voice` that writes here.
    """
    global _patience
    text = "".join(f"trainshed: {line}\n" for line in message.rstrip("\n").split("\n"))
    data = text.encode("utf-8", "backslashreplace")
    try:
        # A terminal or pipe without a reader must not block the job: each piece waits for room.
        for start in range(0, len(data), select.PIPE_BUF):
            if not select.select((), (2,), (), _patience)[1]:
                _patience = 0.0
                return
            os.write(2, data[start : start + select.PIPE_BUF])
    except (OSError, ValueError):
        pass


def say(message: str) -> None:
    """Says a line before any job and its secrets are known, or in a command that has no job."""
    Voice(write).say(message)
