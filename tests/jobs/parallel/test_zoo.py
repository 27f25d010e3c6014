"""Every model of the zoo, on every number of ranks and schedule, gives one process's gradients and parameters."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import zoo_names

from support.extras import needs
from support.lazy import Lazy

torch = Lazy("torch")
workers = Lazy("workers")

pytestmark = [pytest.mark.torch, pytest.mark.exact]

spine = partial(pytest.param, marks=pytest.mark.spine)

SCHEDULES = [
    ("simple", 1),
    ("interleaved", 1),
    ("interleaved1f1b", 2),
    ("interleavedzerobubble", 2),
    ("zbvzerobubble", 2),
    ("dualpipev", 2),
]
GRID = [(degree, schedule, virtual) for degree in (2, 3, 4) for schedule, virtual in SCHEDULES]
OURS = list(zoo_names.OURS)
# For stages on four ranks: a tied table, parts that nothing received leads to, a re-used block ...
FEW = ["two_towers", "reused", "dict_state", "mlp"]
# No sum is re-ordered where each parameter is read once: then the numbers are the same to the last bit.
REORDERED = {"tied", "tied_in_glue", "reused", "shared_table", "gpt2", "bert", "t5"}


@cache
def _one_process(name: str, microbatches: int = 4) -> dict[str, Any]:
    return workers.one_process(name, microbatches=microbatches, draws=name == "dropout")


def _distance(have: torch.Tensor, want: torch.Tensor) -> float:
    have, want = have.double(), want.double()
    return float((have - want).norm() / want.norm().clamp_min(1e-30)) if not torch.equal(have, want) else 0.0


@pytest.mark.matrix
@pytest.mark.heavy
@pytest.mark.on_ranks("workers:pipeline", list(zoo_names.ZOO), world="degree")
@pytest.mark.parametrize(("degree", "schedule", "virtual"), GRID)
def test_every_model_of_the_zoo_on_every_schedule(degree: int, schedule: str, virtual: int, found: list[Any]) -> None:
    needs("transformers")
    wrong = differences(list(zoo_names.ZOO), found)
    assert not wrong, "\n".join(wrong)


@pytest.mark.matrix
@pytest.mark.on_ranks("workers:pipeline", OURS, world="degree")
@pytest.mark.parametrize(("degree", "schedule", "virtual"), [(2, "interleaved1f1b", 2)])
def test_gradients_and_updated_parameters_equal_those_of_one_process(
    degree: int, schedule: str, virtual: int, found: list[Any]
) -> None:
    wrong = differences(OURS, found)
    assert not wrong, "\n".join(wrong)


@pytest.mark.on_ranks("workers:pipeline", FEW, world="degree")
@pytest.mark.parametrize(
    ("degree", "schedule", "virtual"), [(4, "interleaved", 1), spine(4, "simple", 1), spine(2, "interleavedzerobubble", 2)]
)
def test_other_schedules_give_them_too(degree: int, schedule: str, virtual: int, found: list[Any]) -> None:
    wrong = differences(FEW, found)
    assert not wrong, "\n".join(wrong)


def differences(names: list[str], found: list[Any], microbatches: int = 4) -> list[str]:
    """Where the ranks' gradients and parameters are not those of one process."""
    wrong = []
    for name in names:
        expected = _one_process(name, microbatches)
        gradients: dict[str, torch.Tensor] = {}
        for rank in found:
            for key, gradient in rank[name]["gradients"].items():
                if key in gradients and not torch.equal(gradients[key], gradient):
                    wrong.append(f"{name}: ranks disagree on the gradient of {key}")
                gradients[key] = gradient
        state = found[0][name]["state"]
        if set(gradients) != set(expected["gradients"]) or set(state) != set(expected["state"]):
            wrong.append(f"{name}: other parameters have gradients, or the state has other names")
            continue
        pairs = [(gradients[key], value) for key, value in expected["gradients"].items()]
        pairs += [(state[key], value) for key, value in expected["state"].items()]
        distance = max(_distance(have, want) for have, want in pairs)
        limit = 1e-6 if name in REORDERED else 0.0
        if distance > limit:
            wrong.append(f"{name}: relative distance {distance:.1e}, allowed is {limit}")
    return wrong
