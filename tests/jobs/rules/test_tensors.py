"""Rules on tensors over real trainings: each fault fires its own rule, healthy trainings fire none."""

from __future__ import annotations

import collections
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.contract.wire.rules import ON_TENSORS, wanted_rules
from trainshed.studio.rules import collecting
from trainshed.studio.rules.following import Following
from trainshed.studio.rules.watching import Rules

torch = Lazy("torch")
nn = Lazy("torch.nn")
torch_optimizer = Lazy("torch.optim.optimizer")
pytestmark = pytest.mark.torch

STEPS = 12


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[str, str]]]:
    """Collects each step of this test's optimizers; a call gives what the rules say, by their names."""
    torch.manual_seed(1)
    # What an earlier test of this process has compiled is not this training's: hooks stay away from compiled frames.
    fresh = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    monkeypatch.setattr(importlib.import_module("torch._dynamo.utils"), "counters", fresh)
    collector = collecting._Collector(1, str(tmp_path / "tensors"))
    hooks = [
        torch_optimizer.register_optimizer_step_pre_hook(collector.guarded(collector.before)),
        torch_optimizer.register_optimizer_step_post_hook(collector.guarded(collector.after)),
    ]

    def fired() -> dict[str, str]:
        assert not collector._off
        rules = Rules(wanted_rules("all"), "")
        found = rules.take(Following(str(tmp_path), f"{tmp_path}/profiler").look(), 0.0)
        assert rules.problems == []
        return {wanted.name: finding.text for wanted, finding in found}

    yield fired
    for hook in hooks:
        hook.remove()
    if collector._fd >= 0:
        os.close(collector._fd)


def train(
    model: nn.Module,
    inputs: Any = None,
    targets: Any = None,
    *,
    rate: float = 0.1,
    make: str = "SGD",
    of: Any = None,
    between: Callable[[], None] = lambda: None,
    steps: int = STEPS,
) -> None:
    inputs = torch.randn(64, 8) if inputs is None else inputs
    targets = torch.arange(len(inputs)) % 4 if targets is None else targets
    optimizer = getattr(torch.optim, make)(of or model.parameters(), lr=rate)
    criterion = nn.CrossEntropyLoss()
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        between()
        optimizer.step()


def mlp(activation: str = "ReLU") -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), getattr(nn, activation)(), nn.Linear(32, 4))


def vanishing() -> None:
    model = mlp()
    train(model, rate=1.0, between=lambda: [p.grad.mul_(1e-8) for p in model.parameters()] and None, make="Adam")


def exploding() -> None:
    model = mlp()
    train(model, between=lambda: model[0].weight.grad.fill_(float("nan")), rate=0.0, steps=1)  # type: ignore[union-attr, operator]


def too_high_a_rate() -> None:
    train(mlp("Tanh"), rate=1e4, steps=1)


def too_low_a_rate() -> None:
    train(mlp(), rate=1e-12)


def forgotten_parameters() -> None:
    model = mlp()
    train(model, of=list(model[2].parameters()))


def zero_gradients() -> None:
    model = mlp()
    train(model, between=lambda: model[0].weight.grad.zero_(), make="AdamW")  # type: ignore[union-attr, operator]


def alike_weights() -> None:
    model = mlp()
    nn.init.constant_(model[0].weight, 0.5)
    train(model, rate=0.01, steps=2)


def far_too_large_weights() -> None:
    model = mlp()
    nn.init.normal_(model[0].weight, std=20.0)
    train(model, rate=0.001, steps=2)


def dead_units() -> None:
    model = mlp()
    nn.init.constant_(model[0].bias, -20.0)
    model[0].bias.data[0] = 1.0
    train(model)


def saturated_units() -> None:
    model = mlp("Tanh")
    nn.init.constant_(model[0].bias, 6.0)
    train(model, rate=0.01)


def rare_class() -> None:
    train(mlp(), targets=(torch.arange(64) == 0).long())


FAULTY: dict[str, Callable[[], None]] = {
    "VanishingGradient": vanishing,
    "ExplodingTensor": exploding,
    "WeightUpdateRatio": too_high_a_rate,
    "UnchangedTensor": forgotten_parameters,
    "AllZero": zero_gradients,
    "PoorWeightInitialization": alike_weights,
    "DeadRelu": dead_units,
    "SaturatedActivation": saturated_units,
    "ClassImbalance": rare_class,
}


@pytest.mark.spine
@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_fires_its_own_rule(name: str, collected: Callable[[], dict[str, str]]) -> None:
    FAULTY[name]()

    assert set(collected()) == {name}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("fault", "rule"), [(too_low_a_rate, "WeightUpdateRatio"), (far_too_large_weights, "PoorWeightInitialization")]
)
def test_other_forms_of_a_fault(fault: Callable[[], None], rule: str, collected: Callable[[], dict[str, str]]) -> None:
    fault()

    assert set(collected()) == {rule}


def embedding(sparse: bool = False, **options: Any) -> None:
    class WithEmbedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5000, 16, sparse=sparse)
            self.head = nn.Linear(16, 4)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.words(tokens).mean(1))

    train(WithEmbedding(), torch.arange(64).reshape(16, 4) % 50, torch.arange(16) % 4, **options)


def lora() -> None:
    """A frozen layer beside a product that starts at 0."""

    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(8, 4).requires_grad_(False)
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.up(self.down(x))

    train(Lora())


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 1)), nn.Conv2d(1, 8, (3, 1)), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


def two_optimizers() -> None:
    model = mlp()
    one, other = torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.Adam(model[2].parameters())
    for _ in range(STEPS):
        nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.arange(16) % 4).backward()
        for optimizer in (one, other):
            optimizer.step()
            optimizer.zero_grad()


def bounded() -> None:
    optimizer = torch.optim.LBFGS(list((model := mlp("Sigmoid")).parameters()))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)


def clipped() -> None:
    model = mlp()
    train(model, between=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1) and None)


HEALTHY: dict[str, Callable[[], None]] = {
    "relu": lambda: train(mlp()),
    "tanh, Adam": lambda: train(mlp("Tanh"), make="AdamW", rate=1e-3),
    "large embedding": lambda: embedding(make="AdamW", rate=1e-3),
    "sparse embedding": lambda: embedding(sparse=True),
    "LoRA": lora,
    "convolutions and batch norm": lambda: train(convolutions()),
    "bfloat16": lambda: train(mlp().bfloat16(), torch.randn(64, 8).bfloat16()),
    "two optimizers": two_optimizers,
    "LBFGS": bounded,
    "clipped": clipped,
    "layer norm": lambda: train(nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_fires_none(name: str, collected: Callable[[], dict[str, str]]) -> None:
    HEALTHY[name]()

    assert collected() == {}


def test_every_rule_on_tensors_has_a_faulty_training() -> None:
    assert {*FAULTY, "RankDivergence"} == set(ON_TENSORS)


def test_names_are_those_of_the_model_and_wrappers_are_left_out(
    tmp_path: Path, collected: Callable[[], dict[str, str]]
) -> None:
    train(torch.compile(nn.Sequential(mlp(), nn.Linear(4, 4)), backend="eager"), steps=1)  # type: ignore[arg-type]
    collected()

    assert {
        point.name
        for point in Following(str(tmp_path), f"{tmp_path}/profiler").look()
        if point.name.startswith("weights/max/")
    } == {f"weights/max/{layer}.{part}" for layer in ("0.0", "0.2", "1") for part in ("weight", "bias")}


def test_what_fails_in_a_hook_ends_the_looks_and_not_the_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tensors").write_text("a file")
    collector = collecting._Collector(1, str(tmp_path / "tensors"))
    hooks = [
        torch_optimizer.register_optimizer_step_pre_hook(collector.guarded(collector.before)),
        torch_optimizer.register_optimizer_step_post_hook(collector.guarded(collector.after)),
    ]
    train(mlp())
    for hook in hooks:
        hook.remove()

    assert capfd.readouterr().err.count("rules: no more numbers of tensors: FileExistsError") == 1
