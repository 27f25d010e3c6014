"""What the tests of fine_tune.py share beside fixtures: data in its form."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

Options = Callable[..., Namespace]
Train = Callable[..., str]


def lines(folder: Path, *examples: object) -> Path:
    """A channel of one file with these objects, or texts as they are, as lines."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [one if isinstance(one, str) else json.dumps(one) for one in examples]
    (folder / "data.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return folder


def turns(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]}
