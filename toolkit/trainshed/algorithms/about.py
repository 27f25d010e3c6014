"""Declarations as people read them: tables of documentation, and `trainshed describe`."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .declaration import Algorithm
    from .values import Hyperparameter


def hyperparameter_table(algorithm: Algorithm) -> str:
    """The hyperparameters as Markdown, without folders."""
    rows = ["| hyperparameter | default | |", "| --- | --- | --- |"]
    for one in algorithm.hyperparameters.values():
        if one.type != "folder":
            rows.append(f"| `{one.name}` | {shown_default(one)} | {_about(one, code='`')} |")
    return "\n".join(rows)


def description(algorithm: Algorithm) -> str:
    """All of it as text."""
    lines = [f"{algorithm.name}: {algorithm.description}", "", "channels"]
    lines += _columns(
        [
            (name, "required" if channel.required else "", f"{channel.help} ({', '.join(channel.input_modes)})".strip())
            for name, channel in algorithm.channels.items()
        ]
    )
    lines += ["", "hyperparameters"]
    lines += _columns(
        [(one.name, shown_default(one), _about(one)) for one in algorithm.hyperparameters.values() if one.type != "folder"]
    )
    lines += ["", "metrics"]
    lines += _columns([(name, metric.direction, metric.help) for name, metric in algorithm.metrics.items()])
    return "\n".join(line.rstrip() for line in lines)


def shown_default(one: Hyperparameter) -> str:
    """The value that is taken if nothing is given; `required` where something must be."""
    if one.required:
        return "required"
    if one.default is None:
        return ""
    if isinstance(one.default, tuple):
        return ",".join(one.default)
    return one.default if isinstance(one.default, str) else json.dumps(one.default)


def _about(one: Hyperparameter, code: str = "") -> str:
    words = [one.help] if one.help else []
    if one.choices:
        words.append(", ".join(f"{code}{choice}{code}" for choice in one.choices))
    elif one.type in ("integer", "number", "boolean", "list"):
        words.append(one.kind())
    words += [f"needed with {other} = {', '.join(values)}" for other, values in one.required_with.items()]
    words += [f"changes nothing: {one.changes_nothing}"] if one.changes_nothing else []
    others = "other values are " if one.choices or one.default is not None else ""
    words += [f"{others}not served: {one.refused}"] if one.refused else []
    return "; ".join(words)


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return ["  none"]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]


def plain(algorithm: Algorithm) -> dict[str, Any]:
    """All of it as JSON values."""
    return {
        "name": algorithm.name,
        "description": algorithm.description,
        "program": algorithm.script,
        "channels": {name: channel.plain() for name, channel in algorithm.channels.items()},
        "hyperparameters": {name: _finite(one.plain()) for name, one in algorithm.hyperparameters.items()},
        "metrics": {name: metric.plain() for name, metric in algorithm.metrics.items()},
        "hosts": algorithm.hosts,
        "distributions": list(algorithm.distributions),
    }


def _finite(value: Any) -> Any:
    """Without infinities, which JSON does not have."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value
