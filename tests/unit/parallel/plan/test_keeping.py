"""What a job keeps for its parameters: masters, offloaded states, shares of replicas, in what a plan predicts."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

torch: Any = Lazy("torch")
tables: Any = Lazy("trainshed.parallel.plan.costs")
held: Any = Lazy("trainshed.parallel.plan.held")
degrees: Any = Lazy("trainshed.parallel.plan.degrees")
ways: Any = Lazy("trainshed.parallel.plan.ways")
wishes: Any = Lazy("trainshed.parallel.plan.wish")
files: Any = Lazy("trainshed.parallel.plan.plan_file")

pytestmark = pytest.mark.torch


def bytes_of(half: bool, **keeping: Any) -> tuple[int, float]:
    """Of one element: gradient, and what the optimizer keeps."""
    parameter = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16 if half else torch.float32))
    if half:
        parameter.grad_dtype = torch.float32
    return tables.gradient_bytes(parameter), tables.state_bytes(parameter, tables.Keeping(**keeping))


@pytest.mark.parametrize(("half", "keeping", "gradient", "states"), [
    (False, {}, 4, 8), (False, {"states": 0}, 4, 0), (False, {"shared": 4}, 4, 2), (False, {"states_away": True}, 4, 0),
    # 2 bytes of the parameter, 4 of its gradient, 4 of the master, 8 of AdamW's states: 18; the last 12 are shared out.
    (True, {}, 4, 12), (True, {"shared": 4}, 4, 3), (True, {"states_away": True}, 4, 0),
])  # fmt: skip
def test_bytes_of_an_element_are_those_that_the_docs_tell(
    half: bool, keeping: dict[str, Any], gradient: int, states: float
) -> None:
    if half and not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    assert bytes_of(half, **keeping) == (gradient, states)


def test_what_passes_to_the_cpu_counts_once_however_many_microbatches_are_under_way() -> None:
    units = tuple(tables.UnitCost("u", call, 1.0, 1.0, 10, (), passing=passing) for call, passing in ((0, 100), (1, 300)))
    stages = tables.StageCosts(tables.Costs(units, {}, (0, 0, 0), {}), tables.Link())
    assert float(stages.memory(4)[0, 2]) == 4 * 20 + 300


def planned(values: float, gradients: float, states: float, activations: float = 1.0) -> Any:
    every = values + gradients + states
    entry = {
        "stage": 0, "parameters_mib": every, "values_mib": values, "gradients_mib": gradients, "divided_mib": 0.0,
        "memory_mib": every + activations, "forward_ms": 1.0, "backward_ms": 2.0,
    }  # fmt: skip
    unit = files.PlanUnit("layers.0", 0, 0, parameters_mib=every)
    predicted = {"step_ms": 100.0, "bubble": 0.0, "stages": [entry]}
    return files.Plan(model="", pipeline={}, units=(unit,), predicted=predicted)


def ways_of(plan: Any, **wish: Any) -> dict[tuple[bool, int], Any]:
    """Choices of four replicas without stages, by whether states are shared and the degree."""
    (way,) = (one for one in ways.ways_for(4, wishes.Wish(ranks=4, microbatches=4, **wish)) if one.stages == one.tensor == 1)
    return {(one.sharded, one.degree): one for one in degrees.choices([way], [plan], 0)}


def test_sharding_divides_what_the_optimizer_keeps_and_masters_are_fsdps_shards() -> None:
    single = ways_of(planned(4, 4, 8))
    assert single[False, 1].memory_mib == 17 and single[True, 1].memory_mib == 17 - 6
    assert single[False, 4].memory_mib == 16 / 4 + 8 + 1  # the only block and its gradient are whole
    masters = ways_of(planned(2, 4, 12))
    assert masters[False, 1].memory_mib == 19 and masters[True, 1].memory_mib == 19 - 9
    assert masters[False, 4].memory_mib == 16 / 4 + 6 + 1
    assert (True, 1) not in ways_of(planned(2, 4, 0))  # all of it is on the CPU: there is nothing to share out


def test_the_optimizers_step_takes_the_time_of_what_it_touches_and_a_crowd_makes_it_longer() -> None:
    plan, touch = planned(4, 4, 8), 1e-9
    plain, timed = ways_of(plan), ways_of(plan, touch=touch)
    adam = 20 * 4 * 2**20 * touch * 1e3
    assert timed[False, 1].step_ms - plain[False, 1].step_ms == pytest.approx(adam)
    assert timed[True, 1].step_ms - plain[True, 1].step_ms == pytest.approx(adam / 4)
    momentum = ways_of(plan, touch=touch, keeping=tables.Keeping(states=1))
    assert momentum[False, 1].step_ms - plain[False, 1].step_ms == pytest.approx(adam * 8 / 20)


def test_gradients_take_all_messages_of_a_ring() -> None:
    link = tables.Link(latency=0.001, bandwidth=1e6)
    assert link.ring(4e6, 4) == pytest.approx(6 * (0.001 + 1.0))
    assert link.ring(4e6, 4, halves=1) == pytest.approx(3 * (0.001 + 1.0))
    assert link.ring(4e6, 1) == link.ring(0, 4) == 0.0
    assert link.quicker(2).ring(4e6, 4) == pytest.approx(link.ring(4e6, 4) / 2)
