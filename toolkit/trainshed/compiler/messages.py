"""The compiler's words to the user, and why a compilation failed, in one line each."""

from __future__ import annotations

import os

from trainshed.base.numerals import whole
from trainshed.base.voice import tell

LONGEST = 300


def rank() -> int:
    """This process's rank, 0 outside a distributed job."""
    text = os.environ.get("RANK", "0")
    return whole(text) or 0


def local_rank() -> int:
    """This process's rank on its host."""
    text = os.environ.get("LOCAL_RANK", "0")
    return whole(text) or 0


def say(line: str, *, every_rank: bool = False) -> None:
    """One line on stderr, from the first rank unless each may have another."""
    if every_rank or rank() == 0:
        who = f"rank {rank()}: " if every_rank and os.environ.get("WORLD_SIZE", "1") != "1" else ""
        tell(f"compiler: {who}{line}")


def reason_of(error: BaseException) -> str:
    """The line that tells most: torch puts the cause first, then a page about it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = next((line for line in lines if not line.endswith("raised:")), "")
    # gcc's own complaint lies below the command line.
    text += next((f" ({line})" for line in lines if " error: " in line and line != text), "")
    name = type(error).__name__
    return (text if text.startswith(name) else f"{name}: {text}" if text else name)[:LONGEST]
