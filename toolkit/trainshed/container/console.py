"""What `train` itself says: one line at a time, on stderr, so that stdout is the script's alone."""

from __future__ import annotations

import os
import select

from trainshed.base.secrets import mask_text

_patience = 5.0  # seconds that a message waits for a reader; none once that was in vain


def say(message: str, secrets: tuple[str, ...] = ()) -> None:
    """Prints `trainshed: message` to stderr; never raises, never prints a known secret."""
    global _patience
    text = "".join(f"trainshed: {line}\n" for line in mask_text(message, secrets).splitlines())
    data = text.encode("utf-8", "backslashreplace")
    try:
        # A terminal or pipe that nobody reads must not hold up the job: each piece goes out once there is room for it.
        for start in range(0, len(data), select.PIPE_BUF):
            if not select.select((), (2,), (), _patience)[1]:
                _patience = 0.0
                return
            os.write(2, data[start : start + select.PIPE_BUF])
    except (OSError, ValueError):
        pass
