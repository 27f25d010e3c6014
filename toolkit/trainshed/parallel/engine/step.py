"""State that the stages of a rank share during one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..tracing.call_routing import Watcher


@dataclass
class Step:
    """State that all stages of a rank share during one step.

    microbatches: (args, kwargs) of the step function.
    ways: which of the recorded forwards each microbatch follows.
    seed: from which microbatches start Python's and numpy's generators.
    states: random state that each microbatch starts from; empty if the forward draws no random numbers.
    results: what the step function returned, by microbatch (last stage only).
    losses: scaled, of the microbatches that have run (last stage only).
    scale: factor of each microbatch's loss.
    parts: by how many rows more or less than the mean each microbatch's loss counts; 1 where all have the same.
    seconds: stage -> [forward, backward] seconds, summed over microbatches.
    watch: looks at the units that run, where the step is verified.
    """

    function: Callable[..., Any]
    microbatches: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ways: list[int]
    training: bool
    scale: float
    parts: list[float]
    seed: int
    states: list[torch.Tensor] = field(default_factory=list)
    results: dict[int, Any] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)
    failure: Exception | None = None
    watch: Watcher | None = None
