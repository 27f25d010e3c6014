"""What `train` itself says: one line at a time, on stderr, so that stdout is the script's alone."""

from __future__ import annotations

import os

from trainshed.contract.secrets import mask_text


def say(message: str, secrets: tuple[str, ...] = ()) -> None:
    """Prints `trainshed: message` to stderr; never raises, never prints a known secret."""
    text = "".join(f"trainshed: {line}\n" for line in mask_text(message, secrets).splitlines())
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
