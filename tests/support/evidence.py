"""Pages below docs/evidence whose second half is the last result of a command."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from support.paths import DOCS

MARK = "<!-- last result -->\n"


def page(name: str) -> Path:
    """The page of one command's results."""
    return DOCS / "evidence" / f"{name}.md"


def write(name: str, result: str) -> None:
    """Replaces what stands below the page's mark: the date, the machine's cores, and `result`, in Markdown.

    Raises ValueError for a page without the mark.
    """
    before, mark, _ = page(name).read_text().partition(MARK)
    if not mark:
        raise ValueError(f"{page(name)} has no line {MARK.strip()}")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    page(name).write_text(f"{before}{MARK}\n{today}, {os.cpu_count()} cores.\n\n{result.strip()}\n")
