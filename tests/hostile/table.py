"""The cases by name: `@model` and `@loop` put functions into the table."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 8
KINDS = ("models", "loops", "architectures")

_CASES: dict[str, Callable[[Any], None]] = {}
_SEED = [1]
# Cases that do what a pipeline must refuse: right is an error with words.
MISUSE: set[str] = set()
# Libraries that are not installed: their models are not in the table.
ABSENT: list[str] = []


def classify(model: Any, x: Any, y: torch.Tensor) -> torch.Tensor:
    """The commonest step: logits, cross entropy."""
    loss = F.cross_entropy(model(x), y)
    model.backward(loss)
    return loss


def forward_only(model: Any, *inputs: Any) -> Any:
    """All inputs but the labels."""
    return model(*inputs[:-1])


@dataclass
class Spec:
    """A model with its data.

    batch: the number of a step -> the inputs of its whole batch, which are split along their first axis.
    step, evaluate: functions of the model and the inputs of a microbatch; without the latter nothing is evaluated.
    """

    module: nn.Module
    batch: Callable[[int], tuple[Any, ...]]
    step: Callable[..., Any] = classify
    evaluate: Callable[..., Any] | None = forward_only
    rate: float = 0.05
    steps: int = 3
    settings: dict[str, Any] = field(default_factory=dict)


def generator(number: int) -> torch.Generator:
    """For the data of a step."""
    return torch.Generator().manual_seed(1000 + number)


def rows(width: int = 8, classes: int = 5, batch: int = BATCH) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Batches of (batch, width) numbers and labels."""

    def make(number: int) -> tuple[torch.Tensor, ...]:
        source = generator(number)
        return torch.randn(batch, width, generator=source), torch.randint(0, classes, (batch,), generator=source)

    return make


def tokens(length: int = 6, vocabulary: int = 20, classes: int = 5) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Batches of (BATCH, length) words and labels."""

    def make(number: int) -> tuple[torch.Tensor, ...]:
        source = generator(number)
        words = torch.randint(0, vocabulary, (BATCH, length), generator=source)
        return words, torch.randint(0, classes, (BATCH,), generator=source)

    return make


def images(channels: int = 3, size: int = 8, classes: int = 5) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Batches of pictures and labels."""

    def make(number: int) -> tuple[torch.Tensor, ...]:
        source = generator(number)
        pixels = torch.randn(BATCH, channels, size, size, generator=source)
        return pixels, torch.randint(0, classes, (BATCH,), generator=source)

    return make


def train(kit: Any, spec: Spec) -> None:
    """The plainest loop; notes all that a script could see."""
    kit.begin(**spec.settings)
    model = kit.model(spec.module)
    optimizer = kit.optimizer(torch.optim.SGD(model.parameters(), lr=spec.rate, momentum=0.9))
    step = kit.step(spec.step)
    for number in range(spec.steps):
        optimizer.zero_grad()
        kit.note(f"step {number}", step(model, *spec.batch(number)))
        kit.gradients(f"gradients {number}", model)
        optimizer.step()
    if spec.evaluate is not None:
        model.eval()
        with torch.no_grad():
            kit.note("evaluation", kit.step(spec.evaluate)(model, *spec.batch(99)))
    kit.note("state", model.state_dict())


def model(build: Callable[[], Spec]) -> Callable[[], Spec]:
    """Puts a model into the table, which is trained by the plainest loop."""
    _put(build, lambda kit: train(kit, build()))
    return build


def loop(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """Puts a training loop into the table."""
    return _put(run, run)


def misuse(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """Puts a loop into the table that a pipeline must refuse."""
    MISUSE.add(_name(run))
    return _put(run, run)


def _name(function: Callable[..., Any]) -> str:
    kind, topic = function.__module__.split(".")[-2:]
    return f"{kind}/{topic}/{function.__name__}"


def _put(function: Any, run: Callable[[Any], None]) -> Any:
    name = _name(function)
    if name in _CASES:
        raise ValueError(f"two cases are called {name}")
    _CASES[name] = run
    return function


def put(name: str, run: Callable[[Any], None]) -> None:
    """Puts a case into the table that no function of its own stands for."""
    _CASES[name] = run


def set_seed(number: int) -> None:
    """Decides what cases draw when the table is made; before `cases`."""
    _SEED[0] = number


def seed() -> int:
    """As given to `set_seed`."""
    return _SEED[0]


def cases() -> dict[str, Callable[[Any], None]]:
    """All, as kind/topic/name -> what runs with a kit."""
    for kind in KINDS:
        package = importlib.import_module(f"hostile.{kind}")
        for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
            importlib.import_module(f"hostile.{kind}.{found.name}")
    return dict(_CASES)
