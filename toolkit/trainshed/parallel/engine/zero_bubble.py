"""Splits a stage's backward in two: the gradients of its inputs now, those of its parameters later.

The previous stage waits for the first part only; the second fills what would be idle time (Qi et al., Zero Bubble Pipeline
Parallelism, arXiv 2401.10241). A node of the autograd graph from which an input can be reached is *inner*. The first part
runs the inner nodes towards the inputs, and keeps what came into those where a way to parameters branches off; the second
starts again at these nodes, towards the parameters. An output that no input leads to has no inner nodes: the second part
starts at the output itself. (torch's own split, pipelining/_backward.py of 2.13, has no such starts and loses what goes that
way; and it adds to gradients without the hooks of parameters.)

A node where the second part starts runs twice. Where that may not be, or cannot be told, and where the second part would
have to compute the gradients of values once more (a parameter that is used again further down), `Inseparable` is raised
before anything has run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from ..ground.torch_private import RAW_SAVED


class Inseparable(Exception):
    """A stage's backward that must run as a whole.

    parameters: those that it is because of; empty if it is for another reason.
    """

    def __init__(self, reason: str, parameters: Sequence[torch.Tensor] = ()) -> None:
        super().__init__(reason)
        self.reason, self.parameters = reason, tuple(parameters)


@dataclass(eq=False)
class _Group:
    """Parameters whose gradients are made together, and where the ways to them start: inner nodes and outputs.

    ends: the last node of a way -> the parameter whose gradient it adds to.
    """

    nodes: list[Node] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    ends: dict[Node, torch.Tensor] = field(default_factory=dict)


class SplitBackward:
    """The backward of one microbatch.

    Args:
        outputs: tensors that require gradients.
        inputs: leaves that require gradients, at least one.

    Raises:
        Inseparable: it cannot be split.
    """

    def __init__(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        self._edges = [get_gradient_edge(tensor) for tensor in outputs]
        self._inputs = inputs
        self._groups = _groups(self._edges, {get_gradient_edge(tensor).node for tensor in inputs})
        self._came: dict[Node, tuple[torch.Tensor | None, ...]] = {}
        self._given: list[torch.Tensor] = []

    def run_inputs(self, gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the inputs, from those of the outputs; None where an output does not depend on an input."""
        self._given = list(gradients)
        kept = [node.register_prehook(_Keep(self._came, node)) for group in self._groups for node in group.nodes]
        try:
            return torch.autograd.grad(self._edges, self._inputs, self._given, retain_graph=True, allow_unused=True)
        finally:
            for handle in kept:
                handle.remove()

    def run_parameters(self) -> None:
        """Adds to the gradients of the parameters, with their hooks, as `backward` does."""
        for group in self._groups:
            starts = [(self._edges[number], self._given[number]) for number in group.outputs]
            for node in group.nodes:
                for number, gradient in enumerate(self._came.get(node, ())):
                    if gradient is not None:
                        starts.append((GradientEdge(node, number), gradient))
            if not starts:
                continue
            # What came in the first part replaces what a value's own hook, or the way from another start, makes of it now.
            kept = [node.register_prehook(_Give(self._came[node])) for node in group.nodes if node in self._came]
            try:
                edges, gradients = zip(*starts, strict=True)
                # The graph is kept, for it may lead through nodes of other groups; it goes with this object.
                torch.autograd.backward(edges, gradients, inputs=list(group.ends.values()), retain_graph=True)
            finally:
                for handle in kept:
                    handle.remove()


class _Keep:
    def __init__(self, came: dict[Node, tuple[torch.Tensor | None, ...]], node: Node) -> None:
        self.came, self.node = came, node

    def __call__(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        self.came[self.node] = gradients


class _Give:
    def __init__(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        self.gradients = gradients

    def __call__(self, _again: Any) -> Any:
        return self.gradients


def _groups(outputs: Sequence[GradientEdge], inputs: set[Node]) -> list[_Group]:
    users = _users([edge.node for edge in outputs])
    for node in users:
        if reason := _refused(node):
            raise Inseparable(reason)
    inner = _reach(inputs & users.keys(), users)
    owner: dict[Node, _Group] = {}
    for node in users:
        if node in inner and (aside := [after for after in _following(node) if after not in inner]):
            _join(owner, _Group(nodes=[node], ends=_ends(aside)))
    for number, edge in enumerate(outputs):
        if edge.node not in inner:
            _join(owner, _Group(outputs=[number], ends=_ends([edge.node])))
    groups = list(dict.fromkeys(owner.values()))
    crossed = [leaf for group in groups if _is_crossed(group, inner) for leaf in group.ends.values()]
    if crossed:
        raise Inseparable("parameters are used several times, one after the other", crossed)
    return groups


def _join(owner: dict[Node, _Group], fresh: _Group) -> None:
    """Adds a start to the groups: all that share an end with it become one."""
    for group in dict.fromkeys(owner[end] for end in fresh.ends if end in owner):
        fresh.nodes += group.nodes
        fresh.outputs += group.outputs
        fresh.ends |= group.ends
    owner.update(dict.fromkeys(fresh.ends, fresh))


def _is_crossed(group: _Group, inner: set[Node]) -> bool:
    """Whether a way from one start leads through another one, so that all between them would be computed again."""
    starts = set(group.nodes)
    below: set[Node] = set()
    waiting = list(starts) if len(starts) > 1 else []
    while waiting:
        for after in _following(waiting.pop()):
            if after in starts:
                return True
            if after in inner and after not in below:
                below.add(after)
                waiting.append(after)
    return False


def _refused(node: Node) -> str:
    """Why a node must not run twice; empty if it may."""
    kind = type(node)
    if isinstance(node, BackwardCFunction) or kind.__name__ == "CppFunction":
        # It may compute all or nothing, free what it needs, or run a backward of its own: a reentrant checkpoint, a
        # compiled function, a module with backward hooks.
        return f"it runs a backward function that is not torch's own ({node.name()})"
    if kind not in _SAVED:
        _SAVED[kind] = tuple(name for name in dir(node) if name.startswith(RAW_SAVED))
    for name in _SAVED[kind]:
        saved = getattr(node, name)
        for one in saved if isinstance(saved, (tuple, list)) else (saved,):
            if one is not None and getattr(one, "unpack_hook", _UNKNOWN) is not None:
                return "it saves values through hooks (an activation checkpoint, save_on_cpu), or this torch cannot tell"
    return ""


_SAVED: dict[type, tuple[str, ...]] = {}
_UNKNOWN = object()


def _following(node: Node) -> list[Node]:
    return [after for after, _ in node.next_functions if after is not None]


def _users(roots: Iterable[Node]) -> dict[Node, list[Node]]:
    """Every node that the roots lead to -> the nodes that lead to it directly."""
    users: dict[Node, list[Node]] = {root: [] for root in roots}
    waiting = list(users)
    while waiting:
        node = waiting.pop()
        for after in _following(node):
            if after not in users:
                users[after] = []
                waiting.append(after)
            users[after].append(node)
    return users


def _reach(starts: Iterable[Node], users: dict[Node, list[Node]]) -> set[Node]:
    """The starts, and all nodes that lead to one of them."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        for node in users[waiting.pop()]:
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _ends(starts: Iterable[Node]) -> dict[Node, torch.Tensor]:
    """The nodes below the starts that add to the gradient of a leaf, with the leaf."""
    return {node: leaf for node in _users(starts) if (leaf := getattr(node, "variable", None)) is not None}
