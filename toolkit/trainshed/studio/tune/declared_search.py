"""A search over hyperparameters that the job's program declares: `auto` stands for the range that it recommends."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainshed.base.errors import Problem, did_you_mean
from trainshed.runner.job.nodes import Node

from .space import CATEGORICAL, CONTINUOUS, INTEGER

if TYPE_CHECKING:
    from trainshed.algorithms.declaration import Algorithm
    from trainshed.algorithms.values import Hyperparameter

AUTO = "auto"


def with_declared(node: Node, algorithm: Algorithm | None, fixed: Container[str], problems: list[Problem]) -> Node | None:
    """The field `search` with each `auto` written out; None where nothing of it can be.

    Args:
        node: `auto` for all that is recommended and not fixed, or a mapping of hyperparameters.
        algorithm: what the job's program declares, if it does.
        fixed: hyperparameters that the job itself has.
        problems: gets names that the program does not take, and what it has no recommendation for.
    """
    if node.value == AUTO:
        tunable = [one.name for one in algorithm.hyperparameters.values() if one.tunable] if algorithm else []
        names = [name for name in tunable if name not in fixed and name.replace("_", "-") not in fixed]
        if not names:
            more = " for what the job leaves open" if tunable else ""
            whose = f"{algorithm.name} recommends no range{more}" if algorithm else "the job's program declares no ranges"
            problems.append(Problem(node.where, f"{whose}: name hyperparameters and their ranges", "search", AUTO))
            return None
        node = replace(node, value={name: replace(node) for name in names})
    if not isinstance(node.value, dict):
        return node
    made = {name: _written_out(name, inner, algorithm, problems) for name, inner in node.value.items()}
    found = {name: one for name, one in made.items() if one is not None}
    return replace(node, value=found) if found or not made else None


def searched(node: Node | None) -> frozenset[str] | None:
    """Names of the hyperparameters that a search will set, as a declaration writes them; None: all that it recommends."""
    if node is not None and node.value == AUTO:
        return None
    given = node.value if node is not None and isinstance(node.value, dict) else {}
    return frozenset(name.replace("-", "_") for name in given)


def _written_out(name: str, node: Node, algorithm: Algorithm | None, problems: list[Problem]) -> Node | None:
    known: Mapping[str, Hyperparameter] = algorithm.hyperparameters if algorithm else {}
    if algorithm and name not in known and (written := name.replace("-", "_")) not in known:
        near = did_you_mean(written, known)
        problems.append(
            Problem(node.where, f"is not a hyperparameter of {algorithm.name}", f"search.{name}", suggestion=near)
        )
        return None
    if node.value != AUTO:
        return node
    one = known.get(name) or known.get(name.replace("-", "_"))
    if one is None or one.tunable is None:
        why = f"{algorithm.name} recommends no range for it" if algorithm else "the job's program declares no ranges"
        problems.append(Problem(node.where, f"{why}: write one like {{low: 1, high: 8}}", f"search.{name}", AUTO))
        return None

    def leaf(value: Any) -> Node:
        return Node(value, node.where, node.folder, str(value))

    if one.tunable.range is None:
        values = [leaf(choice) for choice in one.choices or ("true", "false")]
        return Node({"type": leaf(CATEGORICAL), "values": Node(values, node.where, node.folder)}, node.where, node.folder)
    whole = one.type == "integer"
    low, high = (int(end) if whole else float(end) for end in one.tunable.range)
    kind = leaf(INTEGER if whole else CONTINUOUS)
    parts = {"type": kind, "low": leaf(low), "high": leaf(high), "scale": leaf(one.tunable.scale)}
    return Node(parts, node.where, node.folder)
