"""A table to learn, and what tabular.py says of it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from support.lazy import Lazy

numpy: Any = Lazy("numpy")
ROWS = 900
LINE = re.compile(r"^\[(\d+)\]\t(.+)$", re.MULTILINE)


def rows(seed: int = 0) -> tuple[Any, Any]:
    """(features [ROWS, 6] with gaps, target) of a smooth function and a little noise."""
    draw = numpy.random.default_rng(seed)
    features = draw.normal(size=(ROWS, 6)).round(4)
    target = features[:, 0] * features[:, 1] + features[:, 2] + 0.1 * draw.normal(size=ROWS)
    features[draw.random(features.shape) < 0.05] = math.nan
    return features, target.round(5)


def write_csv(path: Path, features: Any, target: Any, header: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join([str(label), *("" if math.isnan(cell) else repr(float(cell)) for cell in row)])
             for row, label in zip(features, target, strict=True)]  # fmt: skip
    path.write_text("\n".join([header, *lines] if header else lines) + "\n")
    return path


def channels(tables: Path) -> tuple[str, ...]:
    return ("--train", str(tables / "train"), "--validation", str(tables / "validation"))


def measured(output: str) -> list[dict[str, float]]:
    """What each round has measured, by name."""
    found = [pairs.split("\t") for _, pairs in LINE.findall(output)]
    return [{name: float(value) for name, _, value in (pair.rpartition(":") for pair in pairs)} for pairs in found]


def colours(path: Path) -> Path:
    """A table whose class depends on a text and on a number."""
    draw = numpy.random.default_rng(3)
    lines = ["kind,colour,size"]
    for _ in range(300):
        colour, size = draw.choice(["red", "green", "blue"]), draw.normal()
        kind = "warm" if colour == "red" else "big" if size > 0.3 else "small"
        lines.append(f"{kind},{colour},{size:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path
