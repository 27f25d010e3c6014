"""The links of a pipeline: `${params.NAME}`, `${steps.NAME.model}` and the like, in the values of its file.

A value that is one link gets what it leads to, with its type; within other text a link becomes text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trainshed.base.errors import Problem, did_you_mean
from trainshed.runner.job.nodes import Node

PARAMS, STEPS = "params", "steps"
MODEL, OUTPUT, RUN, METRICS, HYPERPARAMETERS, VERSION = "model", "output", "run", "metrics", "hyperparameters", "version"
PLAIN = (MODEL, OUTPUT, RUN, VERSION)
NAMED = (METRICS, HYPERPARAMETERS)
PATTERN = re.compile(r"\$\{\s*([^{}]*?)\s*\}")
KNOWN = "${params.NAME}, ${steps.NAME.model}, .output, .run, .version, .metrics.NAME, .hyperparameters.NAME"


@dataclass(frozen=True)
class Link:
    """step: "" for a parameter. what: one of `PLAIN` or `NAMED`, or `params`. name: of the parameter or metric."""

    what: str
    step: str = ""
    name: str = ""

    def __str__(self) -> str:
        if not self.step:
            return f"${{{PARAMS}.{self.name}}}"
        return f"${{{STEPS}.{self.step}.{self.what}{f'.{self.name}' if self.name else ''}}}"


Lookup = Callable[[Link], Node]


def link_of(text: str) -> Link | None:
    """The link between `${` and `}`; None where it is none of ours, as `${HOME}`.

    Raises:
        ValueError: it is meant to be one of ours, and is not.
    """
    first, dot, rest = text.partition(".")
    if first == PARAMS and rest:
        return Link(PARAMS, "", rest)
    if first == STEPS:
        step, _, rest = rest.partition(".")
        what, _, name = rest.partition(".")
        if step and ((what in PLAIN and not name) or (what in NAMED and name)):
            return Link(what, step, name)
        near = did_you_mean(what, (*PLAIN, *NAMED)) if what and what not in (*PLAIN, *NAMED) else ""
        raise ValueError(near or f"links are {KNOWN}")
    if dot and did_you_mean(first, (PARAMS, STEPS)):
        raise ValueError(did_you_mean(first, (PARAMS, STEPS)))
    if first == PARAMS:
        raise ValueError(f"links are {KNOWN}")
    return None


def texts(node: Node) -> Iterator[Node]:
    """Every text in a value; names of mappings cannot hold links."""
    if isinstance(node.value, dict):
        for inner in node.value.values():
            yield from texts(inner)
    elif isinstance(node.value, list):
        for inner in node.value:
            yield from texts(inner)
    elif isinstance(node.value, str):
        yield node


def links_in(node: Node, problems: list[Problem], field: str) -> list[tuple[Link, Node]]:
    """The links of a value, each with the text it stands in; those that are misspelled are problems."""
    found = []
    for text in texts(node):
        for match in PATTERN.finditer(str(text.value)):
            try:
                link = link_of(match[1])
            except ValueError as error:
                problems.append(Problem(text.where, "is not a link", field, match[0], str(error)))
                continue
            if link is not None:
                found.append((link, text))
    return found


def resolved(node: Node, lookup: Lookup) -> Node:
    """A value with what its links lead to. Raises what `lookup` raises."""
    if isinstance(node.value, dict):
        return replace(node, value={name: resolved(inner, lookup) for name, inner in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[resolved(inner, lookup) for inner in node.value])
    if not isinstance(node.value, str):
        return node
    whole = PATTERN.fullmatch(node.value)
    if whole is not None and (link := link_of(whole[1])) is not None:
        found = lookup(link)
        return replace(node, value=found.value, text=found.text)

    def text_of(match: re.Match[str]) -> str:
        link = link_of(match[1])
        return match[0] if link is None else lookup(link).text

    text = PATTERN.sub(text_of, node.value)
    return node if text == node.value else replace(node, value=text, text=text)
