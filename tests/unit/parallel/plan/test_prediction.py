"""What a step of one pipeline takes: work, code beside the modules, messages, and ranks that share cores."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

tables: Any = Lazy("trainshed.parallel.plan.costs")
pieces: Any = Lazy("trainshed.parallel.plan.division")
prediction: Any = Lazy("trainshed.parallel.plan.prediction")
wishes: Any = Lazy("trainshed.parallel.plan.plan_request")

pytestmark = pytest.mark.torch


def step_ms(around: float = 0.0, latency: float = 0.0, **wish: Any) -> float:
    """Of two stages of 10 ms forward and 20 ms backward, four microbatches."""
    units = tuple(tables.UnitCost(name, 0, 0.01, 0.02, 0, ()) for name in "ab")
    costs = tables.Costs(units, {}, (0, 8), {}, around=around)
    asked = wishes.Wish(ranks=2, microbatches=4, link=tables.Link(latency, 1e12), **wish)
    return float(prediction.predict(costs, (0, 1), asked, pieces.Divided(1))["step_ms"])


def test_code_beside_the_modules_runs_in_every_stage_and_microbatch() -> None:
    # 1F1B: four microbatches on the last stage, and the first one's way there and back.
    assert step_ms(around=0.01) - step_ms() == pytest.approx(5 * 10, rel=1e-3)


def test_messages_are_work_where_ranks_share_cores_and_only_there() -> None:
    own = 30 + 1e3 * sum(tables.OVERHEAD)
    assert step_ms(crowd=8.0) == pytest.approx(8 * 4 * own, rel=1e-3)
    # 8 messages of 8 ms, of which a core takes an eighth, as each of two ranks has a hand in all of them.
    assert step_ms(crowd=8.0, latency=0.008) - step_ms(crowd=8.0) == pytest.approx(8 * 8 * 1 / 2 + 8, rel=1e-3)
    # Alone they are waited for: the first one's way there and back, two more of 1F1B's, and the results.
    assert step_ms(latency=0.008) == pytest.approx(5 * own + 5 * 8, rel=1e-3)
