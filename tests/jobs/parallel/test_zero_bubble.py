"""A backward in two parts: gradients as those of one, and the whole backward at once where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import test_zoo  # noqa: E402
import zoo  # noqa: E402
from torch import nn  # noqa: E402

from trainshed.parallel.engine import zero_bubble  # noqa: E402
from trainshed.parallel.engine.zero_bubble import Inseparable, SplitBackward  # noqa: E402
from trainshed.parallel.plan.lines import whole_lines  # noqa: E402

pytestmark = pytest.mark.torch

Run = tuple[nn.Module, list[torch.Tensor], list[torch.Tensor]]


def made(build: Callable[[], nn.Module], shapes: list[tuple[int, ...]]) -> Run:
    """A module, inputs that require gradients, and the outputs."""
    torch.manual_seed(0)
    module = build()
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    given = module(*inputs)
    return module, inputs, list(given) if isinstance(given, tuple) else [given]


def gradients(run: Run, split: bool) -> dict[str, Any]:
    """Gradients of inputs and parameters, from the same gradients of the outputs."""
    module, inputs, outputs = run
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(output.shape, generator=generator) for output in outputs]
    if split:
        both = SplitBackward(outputs, inputs)
        of_inputs = both.run_inputs(given)
        assert all(parameter.grad is None for parameter in module.parameters())
        both.run_parameters()
    else:
        torch.autograd.backward(outputs, given)
        of_inputs = tuple(value.grad for value in inputs)
    found = {f"input {number}": gradient for number, gradient in enumerate(of_inputs)}
    return {**found, **{name: parameter.grad for name, parameter in module.named_parameters()}}


def same(have: dict[str, Any], want: dict[str, Any]) -> bool:
    """Whether all gradients are the same to the last bit."""
    return have.keys() == want.keys() and all(
        torch.equal(have[name], value) if value is not None and have[name] is not None else value is have[name]
        for name, value in want.items()
    )


class Crossed(nn.Module):
    """Queries from one input, keys and values from another one; the parameter of all three is split."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.attention(x, memory, memory)[0] + x


class Changed(nn.Module):
    """Parameters that get into a value by changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.first, self.scale = nn.Linear(8, 8), nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(3, 8))
        self.pair, self.rows = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.line(x)
        x[0] = self.first
        x.mul_(self.scale)
        x[:, 2:4].add_(self.pair)
        return torch.relu_(x) + torch.cat([self.rows[:1], self.rows[1:]])


PLAIN: list[tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = [
    (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Linear(8, 4)), [(2, 3, 8)]),
    (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 2, 1)), [(2, 3, 5, 5)]),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), [(2, 3, 8)]),
    (lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), [(2, 3, 8), (2, 4, 8)]),
    (lambda: zoo.Experts(8), [(6, 8)]),
    (Crossed, [(2, 3, 8), (2, 4, 8)]),
    (Changed, [(3, 8)]),
    (zoo.Apart, [(3, 12)]),
    (zoo.PartlyApart, [(3, 12)]),
    (zoo.Branches, [(3, 12)]),
    (zoo.Hooked, [(3, 12)]),
]


@pytest.mark.parametrize(("build", "shapes"), PLAIN)
def test_two_parts_give_what_one_backward_gives(build: Callable[[], nn.Module], shapes: list[tuple[int, ...]]) -> None:
    assert same(gradients(made(build, shapes), True), gradients(made(build, shapes), False))


@pytest.mark.parametrize("kind", [zoo.Apart, zoo.PartlyApart])
def test_what_no_input_leads_to_is_found_and_without_that_gradients_would_be_wrong(kind: type[nn.Module]) -> None:
    run = made(kind, [(3, 12)])
    groups = zero_bubble._groups(
        [torch.autograd.graph.get_gradient_edge(output) for output in run[2]],
        {torch.autograd.graph.get_gradient_edge(value).node for value in run[1]},
    )
    assert [group.outputs for group in groups] == [[1]]
    assert {id(leaf) for leaf in groups[0].ends.values()} == {id(parameter) for parameter in run[0].parameters()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_bubble, "_groups", lambda *given: [_without_outputs(group) for group in groups])
        lost = gradients(run, True)
    assert not same(lost, gradients(made(kind, [(3, 12)]), False))


def _without_outputs(group: Any) -> Any:
    group.outputs.clear()
    return group


def test_a_parameters_hooks_are_called_once_and_a_values_hook_counts_once() -> None:
    module, inputs, outputs = made(zoo.Hooked, [(3, 12)])
    called: list[str] = []
    module.weight.register_hook(lambda _gradient: called.append("gradient"))
    module.weight.register_post_accumulate_grad_hook(lambda _parameter: called.append("added"))
    found = gradients((module, inputs, outputs), True)
    assert called == ["gradient", "added"]
    assert same(found, gradients(made(zoo.Hooked, [(3, 12)]), False))


def test_parameters_that_are_used_again_further_down_are_named_and_would_be_computed_twice() -> None:
    run = made(zoo.Again, [(3, 12)])
    with pytest.raises(Inseparable, match="used several times, one after the other") as refused:
        SplitBackward(run[2], run[1])
    assert {id(parameter) for parameter in refused.value.parameters} == {id(parameter) for parameter in run[0].parameters()}

    passed: list[int] = []

    class Watched(zoo.Again):
        def forward(self, x: torch.Tensor) -> Any:
            between = torch.tanh(self.line(x))
            between.register_hook(lambda _gradient: passed.append(1))
            return self.line(between)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_bubble, "_is_crossed", lambda group, inner: False)
        found = gradients(made(Watched, [(3, 12)]), True)
    assert len(passed) == 2
    assert same(found, gradients(made(Watched, [(3, 12)]), False))


@pytest.mark.parametrize("name", sorted(zoo.WHOLE))
def test_what_must_not_run_twice_is_refused_before_it_has_run(name: str) -> None:
    run = made(zoo.WHOLE[name], [(3, 12)])
    with pytest.raises(Inseparable):
        SplitBackward(run[2], run[1])
    assert same(gradients(run, False), gradients(made(zoo.WHOLE[name], [(3, 12)]), False))


@pytest.mark.on_ranks("workers:pipeline", list(zoo.ODD), 2, "interleavedzerobubble", 2, world=2)
def test_stages_that_cannot_split_run_their_backward_at_once_and_are_named(found: list[Any]) -> None:
    names = list(zoo.ODD)
    assert not test_zoo.differences(names, found)
    for name in names:
        lines = [line for line in found[0][name]["lines"] if "whole backward" in line]
        assert len(lines) == int(name in zoo.WHOLE), (name, lines)
        assert all(line.startswith("stage 1 runs its whole backward at once") for line in lines)
        assert not any("whole backward" in line for line in found[1][name]["lines"])
    assert found[0]["Again"]["lines"][-1].endswith(": odd.bias and 1 more")


OTHERS = [
    (4, 1, 2),
    (2, 2, 1),
    pytest.param(3, 1, 2, marks=pytest.mark.heavy),
    pytest.param(4, 1, 8, marks=pytest.mark.heavy),
]


@pytest.mark.on_ranks("workers:zero_bubble", ["mlp", "two_towers"], world="degree")
@pytest.mark.parametrize(("degree", "virtual", "microbatches"), OTHERS)
def test_other_numbers_of_microbatches_than_stages(degree: int, virtual: int, microbatches: int, found: list[Any]) -> None:
    assert not test_zoo.differences(["mlp", "two_towers"], found, microbatches)


def test_the_lines_about_stages_that_do_not_split() -> None:
    lines = whole_lines({3: ("it is odd", ["a", "b", "c"]), 1: ("it is old", [])})
    assert [line.partition("larger: ")[2] for line in lines] == ["it is old", "it is odd: a and 2 more"]
