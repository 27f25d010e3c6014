"""Whether an optimizer updates parameters by others is seen before its first step, which is then as ever."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

torch = Lazy("torch")
pytestmark = pytest.mark.torch


def made(update: Any, **options: Any) -> tuple[Any, list[Any]]:
    """An optimizer of a script, and its parameters, which have gradients."""

    class Own(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1, "count": 0})
            self.steps = 0

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            del closure
            self.steps += 1
            for group in self.param_groups:
                group["count"] += 1
            update(self, [one for group in self.param_groups for one in group["params"] if one.grad is not None])

    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in ((6, 5), (7,), (2, 3, 4))]
    for one in parameters:
        one.grad = torch.randn_like(one)
    return Own(options.get("groups", lambda given: given)(parameters)), parameters


def by_itself(own: Any, parameters: list[Any]) -> None:
    for one in parameters:
        moment = own.state[one].setdefault("moment", torch.zeros_like(one))
        moment.mul_(0.9).add_(one.grad)
        one.sub_(0.1 * moment * (one.norm() / moment.norm()) + 0.01 * torch.randn_like(one))


def by_a_norm(own: Any, parameters: list[Any]) -> None:
    del own
    total = sum(one.grad.norm().item() ** 2 for one in parameters) ** 0.5
    for one in parameters:
        one.sub_(one.grad * min(1.0, 1 / total))


def by_a_norm_it_keeps(own: Any, parameters: list[Any]) -> None:
    total = torch.stack([one.grad.norm() for one in parameters]).norm()
    for one in parameters:
        own.state[one]["moment"] = one.grad / total
        one.sub_(0.1 * own.state[one]["moment"].sign())


@pytest.mark.parametrize("update", [by_a_norm, by_a_norm_it_keeps])
@pytest.mark.parametrize("groups", [list, lambda given: [{"params": given[:2]}, {"params": given[2:]}]])
def test_an_optimizer_that_goes_by_all_parameters_is_refused(update: Any, groups: Any) -> None:
    from trainshed.parallel.ground.errors import PipelineError
    from trainshed.parallel.mixing import refuse_mixing

    optimizer, _ = made(update, groups=groups)
    with pytest.raises(PipelineError, match="Own updates each parameter by others"):
        refuse_mixing(optimizer)


def test_so_is_torchs_own_with_such_a_hook() -> None:
    from trainshed.parallel.ground.errors import PipelineError
    from trainshed.parallel.mixing import refuse_mixing

    _, parameters = made(by_itself)
    optimizer = torch.optim.SGD(parameters, 0.1)
    assert refuse_mixing(optimizer)

    def clip(given: Any, *_: Any) -> None:
        by_a_norm(given, [one for group in given.param_groups for one in group["params"] if one.grad is not None])

    optimizer.register_step_pre_hook(clip)
    with pytest.raises(PipelineError, match="SGD updates each parameter by others"):
        refuse_mixing(optimizer)


def test_one_that_does_not_is_as_it_was(recwarn: pytest.WarningsRecorder) -> None:
    from trainshed.parallel.mixing import refuse_mixing

    optimizer, parameters = made(by_itself)
    optimizer.state[parameters[1]]["moment"] = torch.ones(7)
    before = [(one.detach().clone(), one.grad) for one in parameters]
    drawn = torch.get_rng_state()

    assert refuse_mixing(optimizer)
    assert all(
        torch.equal(one, value) and one.grad is gradient for one, (value, gradient) in zip(parameters, before, strict=True)
    )
    assert optimizer.steps == 0 and optimizer.param_groups[0]["count"] == 0
    assert optimizer.param_groups[0]["params"] == parameters and list(optimizer.state) == [parameters[1]]
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not [one for one in recwarn if "could not be tried" in str(one.message)]


def test_it_is_tried_again_while_there_are_too_few_gradients() -> None:
    from trainshed.parallel.mixing import refuse_mixing

    optimizer, parameters = made(by_a_norm)
    for one in parameters[1:]:
        one.grad = None
    assert not refuse_mixing(optimizer)


def test_what_cannot_be_tried_is_told() -> None:
    from trainshed.parallel.mixing import refuse_mixing

    def fails(own: Any, given: list[Any]) -> None:
        del own
        assert given[0].shape == (6, 5)

    optimizer, parameters = made(fails)
    with pytest.warns(RuntimeWarning, match="could not be tried whether Own goes by all parameters"):
        assert refuse_mixing(optimizer)
    assert all(one.grad is not None for one in parameters)
