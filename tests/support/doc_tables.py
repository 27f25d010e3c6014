"""The tables in docs/ that are made from the code; `python tests/support/doc_tables.py` writes them anew.

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`; tests/unit/test_doc_tables.py compares it with
what is made here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "toolkit")]

from trainshed.contract.wire import variables  # noqa: E402 (after the path is set)

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->\n)", re.DOTALL)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def variables_table() -> str:
    """The variables that pass between the programs of trainshed."""
    rows = ((f"`{name}`", *rest) for name, *rest in variables.TABLE)
    return table(("variable", "set by", "read by", "holds"), rows)


TABLES: dict[str, Callable[[], str]] = {"variables": variables_table}


def refreshed(page: str) -> str:
    """The page's text with its tables made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", page)


def pages() -> list[Path]:
    """The pages that hold such tables."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(path.read_text())]


if __name__ == "__main__":
    for page in pages():
        page.write_text(refreshed(page.read_text()))
