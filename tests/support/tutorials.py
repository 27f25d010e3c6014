"""The tutorials: scripts and a notebook in docs/tutorials, which tests run and pages show."""

from __future__ import annotations

import json
from pathlib import Path

from support.paths import DOCS

TUTORIALS = sorted(path for ending in ("sh", "ipynb") for path in (DOCS / "tutorials").glob(f"*.{ending}"))
_PROSE = "#:"  # begins a line of a script that is a page's prose


def shown(path: Path) -> str:
    """A tutorial as Markdown."""
    return _notebook(path) if path.suffix == ".ipynb" else _script(path.read_text())


def cells_of(path: Path) -> list[tuple[str, str]]:
    """(kind, text) of each cell of a notebook: kind is `code` or `markdown`."""
    return [(one["cell_type"], "".join(one["source"])) for one in json.loads(path.read_text())["cells"]]


def _notebook(path: Path) -> str:
    _, *cells = cells_of(path)  # the first one is the page's title
    return "\n".join(f"```python\n{text}\n```\n" if kind == "code" else f"{text}\n" for kind, text in cells)


def _script(text: str) -> str:
    parts: list[tuple[bool, list[str]]] = []
    for line in text.splitlines():
        prose = line.startswith(_PROSE)
        if not parts or parts[-1][0] != prose:
            parts.append((prose, []))
        parts[-1][1].append(line.removeprefix(_PROSE)[1:] if prose else line)
    blocks = ("\n".join(lines) if prose else "```bash\n" + "\n".join(lines) + "\n```" for prose, lines in parts)
    return "\n\n".join(blocks) + "\n"
