"""What ranks did to gradients is told from what one process may do, without sending gradients."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

torch = Lazy("torch")
after = Lazy("trainshed.parallel.engine.verify.after_gradients")
digest = Lazy("trainshed.parallel.engine.verify.tensor_digest")
pytestmark = pytest.mark.torch
NAMES = "first", "second"


def ranks(*changes: Any, apart: bool = False) -> list[Any]:
    """What each rank did to its two gradients: `change(gradient, name)`; ranks that are apart hold other parameters."""
    found = []
    for rank, change in enumerate(changes):
        drawn = torch.Generator().manual_seed(rank)
        names = [f"{rank}.{name}" if apart else name for name in NAMES]
        given = {name: torch.randn(6, 4, generator=drawn) * (1 + rank) for name in names}
        before = {name: digest.sketch(one) for name, one in given.items()}
        found.append(after.scaled(before, {name: change(one.clone(), name) for name, one in given.items()}))
    return found


def times(factor: float) -> Any:
    return lambda one, _name: one * factor


def to_norm(norm: float) -> Any:
    """Both gradients have it together afterwards, whatever they had."""
    return lambda one, _name: one * (norm / one.norm())


def masked(one: Any, _name: str) -> Any:
    one[:3] = 0
    return one


@pytest.mark.parametrize("change", [times(1.0), times(0.25), masked, lambda one, _: one.clamp(-0.1, 0.1), to_norm(0.1)])
def test_what_all_ranks_do_alike_is_right(change: Any) -> None:
    same = ranks(change)[0]
    assert after.by_rank([same, same]) == ("", False)


def test_parts_of_a_gradient_that_have_several_factors_are_wrong() -> None:
    line, certain = after.by_rank(ranks(times(0.5), times(0.25)))
    assert certain and "on rank 1 were multiplied by 0.25, those on rank 0 by 0.5" in line


def test_rows_that_are_put_to_zero_on_one_rank_are_a_mask() -> None:
    assert after.by_rank(ranks(times(1.0), times(0.0))) == ("", False)


def test_parameters_of_other_ranks_may_be_scaled_in_another_way() -> None:
    line, certain = after.by_rank(ranks(times(1.0), times(0.5), apart=True))
    assert line and not certain


def test_ranks_that_clip_to_one_norm_clip_by_rank() -> None:
    first, second = (sum(one.length**2 for one in _before(rank).values()) ** 0.5 for rank in (0, 1))
    _, certain = after.by_rank(ranks(times(0.1 / first), times(0.1 / second), apart=True))
    assert certain


def _before(rank: int) -> Any:
    drawn = torch.Generator().manual_seed(rank)
    return {name: digest.sketch(torch.randn(6, 4, generator=drawn) * (1 + rank)) for name in NAMES}
