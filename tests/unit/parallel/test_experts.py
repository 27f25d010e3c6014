"""Which mixtures of experts can be divided among ranks: only those whose parts were seen to add up."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from support.lazy import Lazy

torch = Lazy("torch")
nn = Lazy("torch.nn")
mixtures = Lazy("unit.parallel.mixtures")
engine = Lazy("trainshed.parallel.engine.tensor.experts")
pytestmark = [pytest.mark.exact, pytest.mark.torch]
COUNT, WIDTH = 5, 6


def _inputs(tokens: int = 7, choices: int = 2) -> tuple[torch.Tensor, ...]:
    scores = torch.randn(tokens, COUNT, generator=torch.Generator().manual_seed(1))
    weights, chosen = scores.softmax(-1).topk(choices)
    return torch.randn(tokens, WIDTH), chosen, weights


def _tried(module: nn.Module, ranks: int = 2, inputs: Any = None) -> str:
    experts = engine.experts_of(module)
    assert experts is not None and experts.features == COUNT
    x, chosen, weights = inputs or _inputs()
    before = torch.get_rng_state(), {name: value.clone() for name, value in module.state_dict().items()}
    if isinstance(module, mixtures.Packed):
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
    assert _tried(mixtures.Packed(), ranks) == ""


def test_experts_that_no_token_has_chosen() -> None:
    x, chosen, weights = _inputs()
    assert _tried(mixtures.Packed(), 3, (x, torch.full_like(chosen, 4), weights)) == ""


def test_one_expert_a_token_in_evaluation() -> None:
    assert _tried(mixtures.Packed().eval(), 2, _inputs(1, 1)) == ""


def test_half_precision_with_a_router_in_whole_precision() -> None:
    x, chosen, weights = _inputs()
    assert _tried(mixtures.Cast().bfloat16(), 2, (x.bfloat16(), chosen, weights)) == ""


def test_computed_as_in_the_step() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert _tried(mixtures.Cast()) == ""


@pytest.mark.parametrize(
    ("build", "why"),
    [
        ("Dropping", "do not add up"),
        ("Normed", "do not add up"),
        ("Residual", "do not add up"),
        ("Dropout", "draws random numbers"),
        ("Counting", "changes 'load'"),
        ("Fixed", "cannot be tried in parts"),
    ],
)
def test_what_needs_all_experts_stays_whole(build: str, why: str) -> None:
    assert why in _tried(getattr(mixtures, build)())
    assert why in _tried(getattr(mixtures, build)().eval())


def test_a_way_of_calling_that_nobody_knows() -> None:
    experts = engine.experts_of(mixtures.Packed())
    assert experts is not None
    x, chosen, weights = _inputs()
    experts.note((x, chosen, weights, torch.ones(2)), {})
    assert "not called as experts are" in experts.reason(2)


def test_buffers_and_hooks_may_see_parts() -> None:
    module = mixtures.Packed()
    module.register_buffer("load", torch.zeros(COUNT))
    assert _tried(module) == "it has buffers"
    module = mixtures.Packed()
    module.act = nn.Tanh()
    module.act.register_forward_hook(lambda *_: None)
    assert _tried(module) == "a hook looks into it"


def test_what_is_no_mixture() -> None:
    for module in (nn.Conv1d(3, 4, 2, bias=False), nn.Linear(3, 4), nn.Bilinear(3, 4, 5), nn.Sequential(mixtures.Packed())):
        assert engine.experts_of(module) is None
    replaced: Any = mixtures.Packed()
    replaced.forward = lambda x: x
    assert engine.experts_of(replaced) is None


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
