"""The commands that a page shows: lines of a block that begin with a program of ours, as a reader types them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = re.compile(r"(?:\$ )?((?:trainshed|python3?|pip|docker|make|kubectl|train)(?= [^=])[^─]*)$")
_FENCE = re.compile(r"\s*```(\w*)")
_SHELL = ("", "console", "sh", "bash", "shell")


@dataclass(frozen=True)
class Command:
    """A command, and the line of the page that it stands in."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: {self.text}"


def commands(page: Path) -> list[Command]:
    """All commands of a page, in order; lines that end in a backslash are one with the next."""
    found: list[Command] = []
    fence: str | None = None
    goes_on = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if match := _FENCE.match(line):
            fence = match[1] if fence is None else None
            continue
        text = (
            line if fence in _SHELL and fence is not None else line[4:] if line.startswith("    ") and fence is None else ""
        )
        if goes_on:
            last = found.pop()
            found.append(Command(page, last.line, f"{last.text[:-1]} {text.strip()}"))
        elif match := _PROGRAM.match(text):
            found.append(Command(page, number, match[1].strip()))
        else:
            continue
        goes_on = found[-1].text.endswith("\\")
    return found
