"""Which style of torch divides each module of a plan.

A Linear gives all features to every rank (columns, gathered) unless the modules around it may have parts: those of one
parent, from Linears whose result stays in parts to those that take parts (rows). Whether they may is tried with values: one
process plays each rank of the group, and compares with the whole model what arrives at the rows, and the gradient of each
parameter that is not divided.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from ..plan.division import DivisibleModule, divided
from ..tracing.subject import Subject
from .calls import ModelCall, NotEmitted, close, gradients, judged, quiet

COLUMNS, ROWS, GATHERED, WORDS = (
    "ColwiseParallel()",
    "RowwiseParallel()",
    "ColwiseParallel(output_layouts=Replicate())",
    "RowwiseParallel(input_layouts=Replicate())",
)
ENGINE = "the engine divides it: `distribution: parallel` with tensor_parallel_degree"


def styles_of(subject: Subject, pieces: Sequence[DivisibleModule], ranks: int, call: ModelCall) -> dict[str, str]:
    """Module -> style, as text.

    Raises:
        NotEmitted: torch has no style for a module that the plan divides.
    """
    root = subject.root
    chosen = divided(pieces, ranks, pairs=True).pieces
    if not chosen:
        raise NotEmitted(f"nothing of the model makes {ranks} parts", hint="plan it without tensor ranks")
    for one in chosen:
        _check(root, one)
    styles = {one.module: WORDS if one.kind == "Embedding" else GATHERED for one in chosen}
    with subject.untouched():
        for group in _groups(chosen, ranks):
            if _holds(call, group, ranks):
                styles.update(group)
    return styles


def _check(root: nn.Module, piece: DivisibleModule) -> None:
    module = root.get_submodule(piece.module)
    if type(module) not in (nn.Linear, nn.Embedding):
        raise NotEmitted(
            f"{piece.module!r} is a {type(module).__name__}: torch's styles divide nn.Linear and nn.Embedding", hint=ENGINE
        )
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.sparse):
        raise NotEmitted(f"{piece.module!r} has max_norm or sparse gradients, which torch does not divide", hint=ENGINE)


def _groups(pieces: Sequence[DivisibleModule], ranks: int) -> Iterator[dict[str, str]]:
    """Modules that may pass parts on to each other, with their styles: those at one place of all blocks together."""
    places: dict[str, dict[str, str]] = {}
    for one in pieces:
        parent = one.module.rpartition(".")[0]
        if one.kind == "Linear" and (ranks in one.closes or ranks in one.opens):
            places.setdefault(re.sub(r"\d+", "N", parent), {})[one.module] = ROWS if ranks in one.closes else COLUMNS
    yield from (group for group in places.values() if len(set(group.values())) == 2)


def _holds(call: ModelCall, group: dict[str, str], ranks: int) -> bool:
    """Whether parts between these modules are the parts of the whole, forward and backward."""
    with suppress(Exception), quiet([call.root]):  # code that needs all features fails in its own words
        whole = _Whole()
        with _hooked(call.root, group, whole):
            expected = gradients(judged(call.output()), call.root)
        divided_here = {f"{name}.{own}" for name in group for own, _ in call.root.get_submodule(name).named_parameters()}
        for rank in range(ranks):
            play = _Rank(whole, rank, ranks)
            with _hooked(call.root, group, play):
                found = gradients(judged(call.output()), call.root)
            same = all(close(found[name], one) for name, one in expected.items() if name not in divided_here)
            if not (same and play.right and play.rows):
                return False
        return True
    return False


class _Whole:
    """The model that is not divided: keeps what enters each module, and the gradient of that."""

    def __init__(self) -> None:
        self.inputs: dict[tuple[str, int], torch.Tensor] = {}
        self.gradients: dict[tuple[str, int], torch.Tensor] = {}
        self.calls: dict[str, int] = {}

    def enter(self, name: str, style: str, x: torch.Tensor) -> torch.Tensor:
        key = name, self.calls.get(name, 0)
        self.calls[name] = key[1] + 1
        self.inputs[key] = x.detach()
        own = x.clone()
        if own.requires_grad:
            own.register_hook(lambda gradient: self.gradients.update({key: gradient}))
        return own

    def leave(self, name: str, style: str, x: torch.Tensor) -> torch.Tensor:
        return x


class _Rank:
    """One rank of a group: has its part between columns and rows, and there alone.

    right: whether each of the rows was given this rank's part of what they have in the whole model. rows: how many were.
    """

    def __init__(self, whole: _Whole, rank: int, ranks: int) -> None:
        self.whole, self.rank, self.ranks = whole, rank, ranks
        self.calls: dict[str, int] = {}
        self.right, self.rows = True, 0

    def enter(self, name: str, style: str, x: torch.Tensor) -> torch.Tensor:
        key = name, self.calls.get(name, 0)
        self.calls[name] = key[1] + 1
        if style == ROWS:
            return self._whole_again(x, self.whole.inputs[key])
        own = x.clone()
        if own.requires_grad:  # the ranks sum the gradients of what enters columns
            own.register_hook(lambda _: self.whole.gradients[key])
        return own

    def leave(self, name: str, style: str, x: torch.Tensor) -> torch.Tensor:
        return self._part(x) if style == COLUMNS else x

    def _part(self, x: torch.Tensor) -> torch.Tensor:
        return x.chunk(self.ranks, -1)[self.rank]

    def _whole_again(self, x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        self.right &= close(x.detach(), self._part(whole))
        self.rows += 1
        parts = list(whole.chunk(self.ranks, -1))
        parts[self.rank] = x
        return torch.cat(parts, -1)


@contextmanager
def _hooked(root: nn.Module, group: dict[str, str], play: _Whole | _Rank) -> Iterator[None]:
    handles = []
    for name, style in group.items():
        module = root.get_submodule(name)
        handles.append(module.register_forward_pre_hook(_entering(play, name, style)))
        handles.append(module.register_forward_hook(_leaving(play, name, style)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entering(play: _Whole | _Rank, name: str, style: str) -> Callable[[nn.Module, Any], Any]:
    return lambda _, args: (play.enter(name, style, args[0]), *args[1:])


def _leaving(play: _Whole | _Rank, name: str, style: str) -> Callable[[nn.Module, Any, Any], Any]:
    return lambda _, _args, result: play.leave(name, style, result)
