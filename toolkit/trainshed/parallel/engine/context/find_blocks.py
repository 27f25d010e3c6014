"""Which modules are blocks that divide their sequences, told by one undivided forward: a plan must not cut through one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from ...delayed.shapes import ShapesOnly
from ...ground.tree import leaves
from ...tracing.subject import Subject
from ..forward_patch import StandIn
from ..tensor.foresight import run_forward
from .region import Candidate, candidates_in
from .rules import is_hidden

_ATTENTION = (F.scaled_dot_product_attention, F.multi_head_attention_forward)


def blocks_in(subject: Subject, marks: Callable[[nn.Module], bool | None]) -> tuple[str, ...]:
    """Names of the outermost modules that are given a hidden state, return one of the same shape, and call torch's attention
    in between; or that the script names. The forward runs once.

    Args:
        marks: see `candidates_in`.
    """
    looks = _Looks()
    forwards = [_Looked(one, looks) for one in candidates_in(subject.root, marks)]
    for one in forwards:
        one.install()
    try:
        with ShapesOnly(subject.root.parameters()) if subject.counts else nullcontext():
            run_forward(subject)
    finally:
        for one in reversed(forwards):
            one.remove()
    found = {one.name for one in forwards if one.name in looks.found}
    return tuple(name for name in sorted(found) if not any(name.startswith(f"{other}.") for other in found))


class _Looks:
    """found: names of blocks. attention: calls of attention until now."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.attention = 0


class _Counting(TorchFunctionMode):
    """Counts calls of attention within it."""

    def __init__(self, looks: _Looks) -> None:
        super().__init__()
        self._looks = looks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._looks.attention += func in _ATTENTION
        return func(*args, **(kwargs or {}))


class _Looked(StandIn):
    """What stands for the forward of a module that may be a block."""

    def __init__(self, candidate: Candidate, looks: _Looks) -> None:
        super().__init__(candidate.name, candidate.module)
        self._named, self._looks = candidate.named, looks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        looks = self._looks
        hidden = next((leaf for leaf in leaves((args, kwargs)) if is_hidden(leaf)), None)
        before = looks.attention
        with _Counting(looks):
            result = self.native(*args, **kwargs)
        first = next((one for one in leaves(result) if isinstance(one, torch.Tensor)), None)
        same = hidden is not None and first is not None and first.shape == hidden.shape
        if hidden is not None and (self._named or (same and looks.attention > before)):
            looks.found.add(self.name)
        return result
