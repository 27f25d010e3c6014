"""What replicas make of a plan: time, memory and bytes of sums, of sharding and of the optimizer's step."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

torch: Any = Lazy("torch")
tables: Any = Lazy("trainshed.parallel.plan.costs")
of_rank: Any = Lazy("trainshed.parallel.plan.rank_memory")
over: Any = Lazy("trainshed.parallel.plan.over_replicas")
ways: Any = Lazy("trainshed.parallel.plan.candidates")
wishes: Any = Lazy("trainshed.parallel.plan.plan_request")
shards: Any = Lazy("trainshed.parallel.ground.shards")
files: Any = Lazy("trainshed.parallel.plan.plan_file")
links: Any = Lazy("trainshed.parallel.plan.host_links")

pytestmark = pytest.mark.torch
MIB = 2**20


def test_sums_take_all_messages_of_a_ring_and_parts_of_sums_half_of_them_where_ranks_can() -> None:
    link = tables.Link(latency=0.001, bandwidth=1e6)
    assert link.summed(4e6, 4) == tables.Traffic(pytest.approx(6 * 1.001), 6e6)
    assert link.gathered(4e6, 4) == tables.Traffic(pytest.approx(3 * 1.001), 3e6)
    assert link.scattered(4e6, 4) == link.summed(4e6, 4)  # gloo sums all
    assert tables.Link(0.001, 1e6, sums_all=False).scattered(4e6, 4) == link.gathered(4e6, 4)
    assert link.summed(4e6, 1) == link.summed(0, 4) == link.spread(4e6, 1, 5) == tables.Traffic()
    # 8 pieces, each by a tree of 3 messages.
    assert link.spread(8e6, 8, 8) == tables.Traffic(pytest.approx(8 * 3 * 1.001), 7e6)
    assert link.quicker(2).summed(4e6, 4).seconds == pytest.approx(link.summed(4e6, 4).seconds / 2)


def entry(values: float, gradients: float, states: float, activations: float, **more: Any) -> dict[str, Any]:
    every = values + gradients + states
    return {
        "stage": 0, "parameters_mib": every, "values_mib": values, "gradients_mib": gradients, "divided_mib": 0.0,
        "memory_mib": every + activations, "parameters": 4, "sent_mib": 0.0, **more,
    }  # fmt: skip


def plan(*stages: dict[str, Any]) -> Any:
    unit = files.PlanUnit("layers.0", 0, 0)
    predicted = {"step_ms": 100.0, "bubble": 0.0, "stages": [{**one, "stage": n} for n, one in enumerate(stages)]}
    return files.Plan(model="", pipeline={}, units=(unit,), predicted=predicted)


def way(ranks: int = 4, stages: int = 1, tensor: int = 1, **wish: Any) -> Any:
    terms = ways.Terms(hosts=links.Hosts(0, between=tables.Link(0.0, 1e9, wish.pop("sums_all", True))))
    every = ways.ways_for(ranks, wishes.Wish(ranks=ranks, microbatches=ranks, **{"on_cpus": True, **wish}), terms)
    return next(one for one in every if (one.stages, one.tensor) == (stages, tensor))


def test_what_is_kept_is_shared_out_and_buckets_are_there_when_activations_are_gone() -> None:
    one = plan(entry(40, 40, 80, 30))
    # Gradients lie in buckets as well.
    assert over.replicated(way(), one).memory_mib == 160 + 40
    assert over.replicated(way(1), one).memory_mib == 160 + 30
    assert over.replicated(way(), one, states_shared=True).memory_mib == 160 - 60 + 40
    assert over.replicated(way(), plan(entry(40, 40, 80, 70))).memory_mib == 160 + 70


def test_on_a_gpu_adam_makes_a_tensor_as_large_as_each_parameter() -> None:
    """Measured with AdamW on an H200: docs/evidence/gpu.md."""
    one = plan(entry(40, 40, 80, 30))
    assert over.replicated(way(1, on_cpus=False), one).memory_mib == 160 + 40
    assert over.replicated(way(1, on_cpus=False, optimizer_states=1), one).memory_mib == 160 + 30
    # A stage's parameters and gradients are whole in a step, beside the parts; of several stages the fullest counts.
    two = plan(entry(40, 40, 80, 50), entry(20, 20, 40, 90))
    # Gradients are there once more in the order in which they are sent, and in a copy that gloo sums.
    assert over.stages_sharded(way(stages=2), two, 2).memory_mib == 160 / 2 + 80 + 2 * 40
    assert over.stages_sharded(way(stages=2, sums_all=False), two, 2).memory_mib == 160 / 2 + 80 + 50


def blocks(*rows: int) -> list[Any]:
    """A block for each, of 1 MiB of parameters."""
    return [of_rank.Weight(f"layers.{number}", (one,), 1.0, 1.0, 2.0) for number, one in enumerate(rows)]


def test_blocks_are_gathered_twice_and_what_is_outside_of_them_once() -> None:
    one = plan(entry(5, 5, 10, 3))
    weights = [*blocks(8, 8, 8, 8), of_rank.Weight("", (8,), 1.0, 1.0, 2.0)]
    quarter = over.all_sharded(way(sums_all=False), one, 4, weights)
    assert quarter.sent_mib == pytest.approx(3 / 4 * (4 * 3 + 2))
    assert over.all_sharded(way(), one, 4, weights).sent_mib == pytest.approx(3 / 4 * (4 * 4 + 3))
    # Whole are what is outside and the block that runs, with gradients, and the next block's parameters.
    assert quarter.memory_mib == pytest.approx(20 / 4 + 2 + 3 + 3)
    half = over.all_sharded(way(sums_all=False), one, 2, weights)
    assert half.sent_mib == pytest.approx(1 / 2 * (4 * 3 + 2) + 5 / 2)  # shards are summed over two copies


def test_what_a_rank_of_a_tensor_group_has_is_sharded_and_what_it_has_whole_summed_over_the_group() -> None:
    # Of 4 blocks of 1 MiB a rank has 2.5 MiB: 1 MiB that all ranks of the group have, and half of the rest.
    one = plan(entry(2.5, 2.5, 5, 3, divided_mib=6.0))
    sharded = over.all_sharded(way(tensor=2, sums_all=False), one, 2, blocks(8, 8, 8, 8))
    assert sharded.sent_mib == pytest.approx(2 * 1 / 2 * 3 * 2.5 + 1 / 2)  # of 2 microbatches; then the shards of 1 MiB
    assert sharded.memory_mib == pytest.approx(10 / 2 + 3 * 2.5 / 4 + 3)


def test_shards_are_all_as_long_as_the_longest() -> None:
    # Two experts, by four ranks: each sends as if there were four, and one has half of a parameter.
    assert blocks(2)[0].padded(4) == 2 and blocks(3)[0].padded(4) == pytest.approx(4 / 3) and blocks(0)[0].padded(4) == 1
    one, weights = plan(entry(4, 4, 8, 0)), blocks(2, 2, 2, 2)
    assert over.all_sharded(way(sums_all=False), one, 4, weights).sent_mib == pytest.approx(2 * 3 / 4 * 4 * 3)
    assert over.all_sharded(way(), one, 4, weights).memory_mib == pytest.approx(16 / 2 + 3)


def test_few_experts_are_sharded_along_another_axis_which_pads_nothing() -> None:
    experts = of_rank.Weight("layers.0", (2, 5, 8), 1.0, 1.0, 2.0)
    assert experts.padded(4) == 1 and experts.padded(3) == 1.5  # 3 divides no axis
    # Shards of the first axis are a quarter longer than the parameter at most.
    assert [shards.shard_axis((rows, 8), 4) for rows in (1, 3, 4, 13, 15)] == [1, 1, 0, 0, 0]
    assert shards.shard_axis((), 4) == shards.shard_axis((3, 0), 4) == shards.shard_axis((3, 8), 4, divided=1) == 0


def test_weights_are_read_of_a_model_by_block() -> None:
    model = torch.nn.ModuleDict({"words": torch.nn.Embedding(4, 2), "layers": torch.nn.ModuleList([torch.nn.Linear(2, 6)])})
    model["words"].weight.requires_grad_(False)
    words, weight, bias = of_rank.weights_of(model, 2)
    assert (words.block, weight.block, bias.block) == ("", "layers.0", "layers.0")
    assert (words.sizes, weight.sizes, bias.sizes) == ((4, 2), (6, 2), (6,))
    assert (words.value * MIB, words.gradient, words.states) == (32, 0, 0)
    assert (weight.value * MIB, weight.gradient * MIB, weight.states * MIB) == (48, 48, 96)


def test_float32_values_of_parameters_in_half_precision_are_their_shards() -> None:
    if not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    model = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    model.weight.grad_dtype = torch.float32
    (weight,) = of_rank.weights_of(model, 2)
    # 2 bytes of the value, 4 of the gradient, 4 of the float32 value and 8 of AdamW's states.
    assert (weight.value * MIB, weight.gradient * MIB, weight.states * MIB) == (32, 64, 192)
    assert weight.shard * MIB == 16 * 16
    assert of_rank.Weight("", (4,), 1.0, 0.0, 0.0).shard == 1.0  # frozen


def test_bytes_are_those_of_the_sums_and_of_what_a_pipeline_sends_the_mean_of_its_ranks() -> None:
    one = plan(entry(4, 4, 8, 0))
    assert over.replicated(way(), one).sent_mib == pytest.approx(2 * 3 / 4 * 4)
    assert over.replicated(way(), one, states_shared=True).sent_mib == pytest.approx(3 * 3 / 4 * 4)
    two = plan(entry(4, 4, 8, 0, sent_mib=3.0), entry(2, 2, 4, 0, sent_mib=1.0))
    assert over.replicated(way(stages=2), two).sent_mib == pytest.approx((3 + 1 + 4 + 2) / 2)
    assert over.stages_sharded(way(stages=2, sums_all=False), two, 2).sent_mib == pytest.approx((3 + 1 + 4 + 2) / 2)
    # Half of the parameters are parts, which only replicas have; the others are summed over all ranks.
    parted = plan(entry(4, 4, 8, 0, divided_mib=8.0))
    assert over.replicated(way(tensor=2), parted).sent_mib == pytest.approx(2 * 1 / 2 * 2 + 2 * 3 / 4 * 2)


def test_the_optimizers_step_takes_the_time_of_what_it_touches_and_a_crowd_makes_it_longer() -> None:
    one, touch = plan(entry(4, 4, 8, 1)), 1e-9

    def update(**more: Any) -> float:
        return float(over.replicated(way(1, touch=touch, **more), one).milliseconds - 100)

    adam = 20 * 4 * MIB * touch * 1e3
    assert update() == pytest.approx(adam)
    assert update(optimizer_states=1) == pytest.approx(adam * 8 / 20)
    assert update(optimizer_states=0) == pytest.approx(adam * 3 / 20)
    slow = over.replicated(ways.ways_for(1, wishes.Wish(ranks=1, touch=touch), ways.Terms(links.Hosts(crowd=3.0)))[0], one)
    assert slow.milliseconds - 100 == pytest.approx(3 * adam)
    whole, shared = (over.replicated(way(touch=touch), one, states_shared=done) for done in (False, True))
    broadcast = 4 * 2 * 1 * MIB / 1e9 * 1e3  # 4 parameters of 1 MiB, each by a tree of 2 messages
    assert whole.milliseconds - shared.milliseconds == pytest.approx(3 / 4 * adam - broadcast)


def test_a_measured_update_goes_by_parameters_and_bytes_of_which_shards_have_a_part() -> None:
    runtime: Any = Lazy("trainshed.parallel.plan.runtime")
    one, update = plan(entry(4, 4, 8, 1)), runtime.UpdateCost(parameter=1e-3, byte=1e-8)
    whole = over.replicated(way(1, update=update), one).milliseconds - 100
    assert whole == pytest.approx(4 * 1 + 4 * MIB * 1e-8 * 1e3)
    two = [over.stages_sharded(way(stages=2, update=made), plan(entry(4, 4, 8, 1)), 2) for made in (update, None)]
    assert two[0].milliseconds - two[1].milliseconds == pytest.approx(4 * 1 + 2 * MIB * 1e-8 * 1e3)


def test_ranks_that_see_whether_all_do_the_same_wait_for_each_others_messages() -> None:
    terms = ways.Terms(hosts=links.Hosts(0, between=tables.Link(0.001, 1e12)))
    found = next(one for one in ways.ways_for(4, wishes.Wish(ranks=4, microbatches=4), terms) if one.replicas == 4)
    one = plan(entry(0, 0, 0, 1))
    # Two sums over four ranks are 12 messages; shards sum once more for each microbatch.
    assert over.replicated(found, one).milliseconds - 100 == pytest.approx(12, rel=1e-3)
    assert over.all_sharded(found, one, 4, blocks()).milliseconds - 100 == pytest.approx(18, rel=1e-3)


def test_stages_that_hold_one_parameter_sum_its_gradient() -> None:
    traffic: Any = Lazy("trainshed.parallel.plan.traffic")
    units = tuple(tables.UnitCost(name, 0, 1.0, 1.0, 0, (name,), sent=sent) for name, sent in (("a", 5.0), ("b", 0.0)))
    costs = tables.Costs(units, {}, (0, 100), {}, gradients={"a": 8, "b": 8, "tied": 64})
    wish = wishes.Wish(ranks=2, microbatches=3, link=tables.Link(0.0, 1.0))
    summed = traffic.summed_by_stages(costs, wish, [{"a", "tied"}, {"b", "tied"}])
    assert summed == [tables.Traffic(64.0, 64.0)] * 2
    crossing = traffic.crossings(costs, (0, 1), wish)
    assert crossing == [100, 0]
    assert traffic.bytes_sent(costs, (1, 2), wish, crossing, summed) == [3 * (5 + 100) + 64, 3 * 100 + 64]
    # One rank that has both sends nothing.
    own = wishes.Wish(ranks=1, virtual=2, schedule="interleaved1f1b")
    assert traffic.crossings(costs, (0, 1), own) == [0, 0]
    assert traffic.summed_by_stages(costs, own, [{"tied"}, {"tied"}]) == [tables.Traffic()] * 2
