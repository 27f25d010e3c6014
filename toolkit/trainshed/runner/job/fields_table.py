"""The table of job-file fields in docs/running.md: `python -m trainshed.runner.job.fields_table`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from trainshed.base.files import write_atomic

from .fields import FIELDS, Field

PAGE = "docs/running.md"
START, END = "<!-- fields: made from the table in the code -->\n", "<!-- end of fields -->\n"
_KINDS = {
    "text": "text", "size": "size, like 8g", "duration": "time, like 10m or 90s", "durations": "durations, like 20s,1.5m",
    "switch": "true or false", "words": "list of texts", "path": "path",
    "folder": "folder", "mapping": "mapping", "record": "mapping",
}  # fmt: skip


def table() -> str:
    """The fields as a Markdown table, one line a field."""
    lines = ["| field | value | flag | CreateTrainingJob | meaning |", "|---|---|---|---|---|"]
    for name, row in _all(FIELDS):
        flags = ", ".join(f"`{flag}`" for flag in row.flags)
        request = f"`{row.request}`" if row.request else ""
        cells = (f"`{name}`", _value(row), flags, request, row.help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def in_page(text: str) -> str:
    """The page with the table as it is now. Raises ValueError where the page has no place for it."""
    before, _, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page lacks the lines {START.strip()} and {END.strip()}")
    return before + START + "\n" + table() + "\n" + END + after


def _all(rows: tuple[Field, ...], prefix: str = "") -> Iterator[tuple[str, Field]]:
    for row in rows:
        yield f"{prefix}{row.name}", row
        between = "NAME." if row.kind == "mapping" else ""
        yield from _all(row.rows, f"{prefix}{row.name}.{between}")


def _value(row: Field) -> str:
    if row.kind == "choice":
        return ", ".join(f"`{word}`" for word in row.choices)
    if row.kind in ("whole", "number"):
        words = "".join(f"`{word}` or " for word in row.choices)
        kind = "whole number" if row.kind == "whole" else "number"
        return f"{words}{kind}, {row.low} to {row.high}"
    limit = f", at most {row.most}" if row.most else ""
    if row.short:
        plain = "`true`" if row.short == "true" else f"`{row.short}`"
        return f"{plain}, or a mapping{limit}" if row.kind == "record" else f"mapping{limit}"
    if row.kind == "mapping" and row.pair:
        key, value = row.pair
        return f"mapping{limit}, or a list of `{key}` and `{value}`"
    return _KINDS[row.kind] + (f"{limit} characters" if row.kind == "text" and limit else limit)


def main() -> None:
    """Renews the table in the page, below the working directory or as named."""
    path = sys.argv[1] if len(sys.argv) > 1 else PAGE
    with open(path, encoding="utf-8") as file:
        text = file.read()
    write_atomic(path, in_page(text))


if __name__ == "__main__":
    main()
