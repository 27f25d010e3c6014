"""A backward in two parts: gradients as those of one, and the whole backward at once where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import test_zoo
import zoo_names

from support.lazy import Lazy

torch = Lazy("torch")
nn = Lazy("torch.nn")
splits = Lazy("trainshed.parallel.engine.zero_bubble")
lines_of_plans = Lazy("trainshed.parallel.plan.lines")
zoo = Lazy("zoo")
small_modules = Lazy("small_modules")

pytestmark = [pytest.mark.torch, pytest.mark.exact]

Run = tuple[Any, list[Any], list[Any]]


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
        both = splits.SplitBackward(outputs, inputs)
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


PLAIN: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "layers": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Linear(8, 4)), [(2, 3, 8)]),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 2, 1)),
        [(2, 3, 5, 5)],
    ),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), [(2, 3, 8)]),
    "decoder": (lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), [(2, 3, 8), (2, 4, 8)]),
    "experts": (lambda: zoo.Experts(8), [(6, 8)]),
    "crossed": (lambda: small_modules.Crossed(), [(2, 3, 8), (2, 4, 8)]),
    "changed": (lambda: small_modules.Changed(), [(3, 8)]),
    "Apart": (lambda: zoo.Apart(), [(3, 12)]),
    "PartlyApart": (lambda: zoo.PartlyApart(), [(3, 12)]),
    "Branches": (lambda: zoo.Branches(), [(3, 12)]),
    "Hooked": (lambda: zoo.Hooked(), [(3, 12)]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_two_parts_give_what_one_backward_gives(name: str) -> None:
    assert same(gradients(made(*PLAIN[name]), True), gradients(made(*PLAIN[name]), False))


@pytest.mark.parametrize("kind", ["Apart", "PartlyApart"])
def test_what_no_input_leads_to_is_found_and_without_that_gradients_would_be_wrong(kind: str) -> None:
    from trainshed.parallel.engine import zero_bubble

    run = made(zoo.ODD[kind], [(3, 12)])
    groups = zero_bubble._groups(
        [torch.autograd.graph.get_gradient_edge(output) for output in run[2]],
        {torch.autograd.graph.get_gradient_edge(value).node for value in run[1]},
    )
    assert [group.outputs for group in groups] == [[1]]
    assert {id(leaf) for leaf in groups[0].ends.values()} == {id(parameter) for parameter in run[0].parameters()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero_bubble, "_groups", lambda *given: [_without_outputs(group) for group in groups])
        lost = gradients(run, True)
    assert not same(lost, gradients(made(zoo.ODD[kind], [(3, 12)]), False))


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
    with pytest.raises(splits.Inseparable, match="used several times, one after the other") as refused:
        splits.SplitBackward(run[2], run[1])
    assert {id(parameter) for parameter in refused.value.parameters} == {id(parameter) for parameter in run[0].parameters()}

    from trainshed.parallel.engine import zero_bubble

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


@pytest.mark.parametrize("name", sorted(zoo_names.WHOLE))
def test_what_must_not_run_twice_is_refused_before_it_has_run(name: str) -> None:
    run = made(zoo.WHOLE[name], [(3, 12)])
    with pytest.raises(splits.Inseparable):
        splits.SplitBackward(run[2], run[1])
    assert same(gradients(run, False), gradients(made(zoo.WHOLE[name], [(3, 12)]), False))


@pytest.mark.matrix
@pytest.mark.on_ranks("workers:pipeline", list(zoo_names.ODD), 2, "interleavedzerobubble", 2, world=2)
def test_stages_that_cannot_split_run_their_backward_at_once_and_are_named(found: list[Any]) -> None:
    names = list(zoo_names.ODD)
    assert not test_zoo.differences(names, found)
    for name in names:
        lines = [line for line in found[0][name]["lines"] if "whole backward" in line]
        assert len(lines) == int(name in zoo_names.WHOLE), (name, lines)
        assert all(line.startswith("stage 1 runs its whole backward at once") for line in lines)
        assert not any("whole backward" in line for line in found[1][name]["lines"])
    assert found[0]["Again"]["lines"][-1].endswith(": odd.bias and 1 more")


OTHERS = [
    (4, 1, 2),
    pytest.param(2, 2, 1, marks=pytest.mark.matrix),
    pytest.param(3, 1, 2, marks=[pytest.mark.heavy, pytest.mark.matrix]),
    pytest.param(4, 1, 8, marks=[pytest.mark.heavy, pytest.mark.matrix]),
]


@pytest.mark.on_ranks("workers:zero_bubble", ["mlp", "two_towers"], world="degree")
@pytest.mark.parametrize(("degree", "virtual", "microbatches"), OTHERS)
def test_other_numbers_of_microbatches_than_stages(degree: int, virtual: int, microbatches: int, found: list[Any]) -> None:
    assert not test_zoo.differences(["mlp", "two_towers"], found, microbatches)


def test_the_lines_about_stages_that_do_not_split() -> None:
    lines = lines_of_plans.whole_lines({3: ("it is odd", ["a", "b", "c"]), 1: ("it is old", [])})
    assert [line.partition("larger: ")[2] for line in lines] == ["it is old", "it is odd: a and 2 more"]
