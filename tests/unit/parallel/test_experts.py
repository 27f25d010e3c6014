"""Which mixtures of experts can be divided among ranks: only those whose parts were seen to add up."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from trainshed.parallel.engine.tensor.experts import experts_of  # noqa: E402

pytestmark = pytest.mark.exact

COUNT, WIDTH = 5, 6


class Packed(nn.Module):
    """Experts by hand, whose sizes make no equal parts."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__()
        self.num_experts = count
        self.up = nn.Parameter(torch.randn(count, 9, WIDTH) / 3)
        self.down = nn.Parameter(torch.randn(count, WIDTH, 9) / 3)
        self.bias = nn.Parameter(torch.randn(count, WIDTH) / 3)

    def one(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return F.linear(F.linear(x, self.up[number]).tanh(), self.down[number], self.bias[number])

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for number in range(self.num_experts):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            found = found.index_add(0, rows, self.one(x[rows], number) * weights[rows, choice, None])
        return found


class Cast(Packed):
    """Gives what came in, whatever it was computed in."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for number in range(self.num_experts):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            part = self.one(x[rows], number) * weights[rows, choice, None]
            found = found.index_add(0, rows, part.to(x.dtype))
        return found


class Dropping(Packed):
    """An expert takes no more than its share, and a half."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found, room = torch.zeros_like(x), 1.5 * chosen.numel() / self.num_experts
        for number in range(self.num_experts):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            rows, choice = rows[: int(room + 1)], choice[: int(room + 1)]
            found = found.index_add(0, rows, self.one(x[rows], number) * weights[rows, choice, None])
        return found


class Normed(Packed):
    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return super().forward(x, chosen, weights / weights.sum(-1, keepdim=True))


class Residual(Packed):
    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x, chosen, weights)


class Dropout(Packed):
    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(x, chosen, weights), 0.1, self.training)


class Counting(Packed):
    """Keeps its load for a loss outside."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self.load = torch.bincount(chosen.flatten(), minlength=self.num_experts)
        return super().forward(x, chosen, weights)


class Fixed(Packed):
    """Knows the number of its experts by heart."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        dense = torch.zeros(len(x), COUNT).scatter(1, chosen, weights)
        every = torch.stack([self.one(x, number) for number in range(COUNT)], 1)
        return (dense[..., None] * every).sum(1)


def _inputs(tokens: int = 7, choices: int = 2) -> tuple[torch.Tensor, ...]:
    scores = torch.randn(tokens, COUNT, generator=torch.Generator().manual_seed(1))
    weights, chosen = scores.softmax(-1).topk(choices)
    return torch.randn(tokens, WIDTH), chosen, weights


def _tried(module: nn.Module, ranks: int = 2, inputs: Any = None) -> str:
    experts = experts_of(module)
    assert experts is not None and experts.features == COUNT
    x, chosen, weights = inputs or _inputs()
    before = torch.get_rng_state(), {name: value.clone() for name, value in module.state_dict().items()}
    if isinstance(module, Packed):
        experts.note((x,), {"weights": weights, "chosen": chosen})
    else:
        experts.note((x, chosen, weights), {})
    reason = experts.reason(ranks)
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(torch.equal(value, before[1][name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None and type(parameter) is nn.Parameter for parameter in module.parameters())
    return reason


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_parts_of_experts_add_up(ranks: int) -> None:
    assert _tried(Packed(), ranks) == ""


def test_experts_that_no_token_has_chosen() -> None:
    x, chosen, weights = _inputs()
    assert _tried(Packed(), 3, (x, torch.full_like(chosen, 4), weights)) == ""


def test_one_expert_a_token_in_evaluation() -> None:
    assert _tried(Packed().eval(), 2, _inputs(1, 1)) == ""


def test_half_precision_with_a_router_in_whole_precision() -> None:
    x, chosen, weights = _inputs()
    assert _tried(Cast().bfloat16(), 2, (x.bfloat16(), chosen, weights)) == ""


def test_computed_as_in_the_step() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert _tried(Cast()) == ""


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (Dropping, "do not add up"),
        (Normed, "do not add up"),
        (Residual, "do not add up"),
        (Dropout, "draws random numbers"),
        (Counting, "changes 'load'"),
        (Fixed, "cannot be tried in parts"),
    ],
)
def test_what_needs_all_experts_stays_whole(build: Callable[[], nn.Module], why: str) -> None:
    assert why in _tried(build())
    assert why in _tried(build().eval())


def test_a_way_of_calling_that_nobody_knows() -> None:
    experts = experts_of(Packed())
    assert experts is not None
    x, chosen, weights = _inputs()
    experts.note((x, chosen, weights, torch.ones(2)), {})
    assert "not called as experts are" in experts.reason(2)


def test_buffers_and_hooks_may_see_parts() -> None:
    module = Packed()
    module.register_buffer("load", torch.zeros(COUNT))
    assert _tried(module) == "it has buffers"
    module = Packed()
    module.act = nn.Tanh()
    module.act.register_forward_hook(lambda *_: None)
    assert _tried(module) == "a hook looks into it"


def test_what_is_no_mixture() -> None:
    for module in (nn.Conv1d(3, 4, 2, bias=False), nn.Linear(3, 4), nn.Bilinear(3, 4, 5), nn.Sequential(Packed())):
        assert experts_of(module) is None
    replaced: Any = Packed()
    replaced.forward = lambda x: x
    assert experts_of(replaced) is None


@pytest.mark.parametrize("way", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize(("family", "name"), [("mixtral", "Mixtral"), ("qwen3_moe", "Qwen3Moe"), ("gpt_oss", "GptOss")])
def test_experts_of_transformers(family: str, name: str, way: str) -> None:
    pytest.importorskip("transformers", minversion="5.0")
    models = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 24}
    config = getattr(models, f"{name}Config")(**sizes, num_experts=COUNT, num_local_experts=COUNT)
    config._experts_implementation = way
    module = getattr(models, f"{name}Experts")(config)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    _, chosen, weights = _inputs()
    assert _tried(module, 3, (torch.randn(7, 16), chosen, weights)) == ""
