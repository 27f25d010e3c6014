"""Plans: profile, choice of units, file, prediction."""

from __future__ import annotations

import gc
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zoo_names

from support.lazy import Lazy
from trainshed.parallel.ground.errors import PlanError
from trainshed.parallel.plan.simulate import order, step_seconds

torch = Lazy("torch")
nn = Lazy("torch.nn")
zoo = Lazy("zoo")
small_modules = Lazy("small_modules")
shapes = Lazy("trainshed.parallel.delayed.shapes")
links = Lazy("trainshed.parallel.plan.costs")
degrees = Lazy("trainshed.parallel.plan.degrees")
holding = Lazy("trainshed.parallel.plan.rank_memory")
plan_files = Lazy("trainshed.parallel.plan.plan_file")
planning = Lazy("trainshed.parallel.plan.planner")
profiles = Lazy("trainshed.parallel.plan.profile")
runtime = Lazy("trainshed.parallel.plan.runtime")
parallel_ways = Lazy("trainshed.parallel.plan.candidates")
wishes_of = Lazy("trainshed.parallel.plan.plan_request")
subjects = Lazy("trainshed.parallel.tracing.subject")

pytestmark = pytest.mark.torch


def step(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    model.backward(loss)
    return loss


def subject(module: nn.Module, x: torch.Tensor, device: str = "cpu") -> subjects.Subject:
    holder = small_modules.Holder(module)
    return subjects.Subject(module, step, lambda h: setattr(holder, "handler", h), (holder, x), {}, torch.device(device))


def blocks(count: int = 4, width: int = 32) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(count)])


def test_a_plan_survives_its_file_unchanged(tmp_path: Path) -> None:
    plan = planning.make_plan(subject(blocks(), torch.randn(8, 32)), wishes_of.Wish(ranks=2, pins={"3": 1}))
    plan.save(str(tmp_path / "plan.json"))
    assert plan_files.load_plan(str(tmp_path / "plan.json")) == plan_files.Plan(**{**plan.__dict__})
    assert plan_files.load_plan(str(tmp_path / "plan.json")).to_json() == plan.to_json()


def test_stages_may_be_edited_in_the_file_if_they_still_rise(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planning.make_plan(subject(blocks(), torch.randn(8, 32)), wishes_of.Wish(ranks=2)).save(str(path))
    data = json.loads(path.read_text())
    for number, unit in enumerate(data["units"]):
        unit["stage"] = int(number > 0)
    path.write_text(json.dumps(data))
    assert plan_files.load_plan(str(path)).starts() == (0, 1)
    data["units"][-1]["stage"] = 0
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match="is on stage 0, after stage 1"):
        plan_files.load_plan(str(path))


@pytest.mark.parametrize(("text", "message"), [
    ("{", "is not JSON: line 1"), ('{"version": 99}', "reads version 1"), ('{"version": 1}', "not a plan: 'units'"),
])  # fmt: skip
def test_a_broken_plan_file_is_an_error_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=message):
        plan_files.load_plan(str(tmp_path / "plan.json"))


def test_the_fingerprint_depends_on_shapes_and_not_on_values() -> None:
    assert plan_files.model_fingerprint(nn.Linear(3, 4)) == plan_files.model_fingerprint(nn.Linear(3, 4))
    assert plan_files.model_fingerprint(nn.Linear(3, 4)) != plan_files.model_fingerprint(nn.Linear(4, 3))


def test_a_model_on_the_meta_device_is_planned_by_its_operations() -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to("meta")
    plan = planning.make_plan(subject(model, torch.empty(8, 64, device="meta"), "meta"), wishes_of.Wish(ranks=2))
    assert plan.starts() == (0, 2)
    assert (
        plan.to_json()
        == planning.make_plan(subject(model, torch.empty(8, 64, device="meta"), "meta"), wishes_of.Wish(ranks=2)).to_json()
    )


# What these keep for the backward is a matter of the kernel (an LSTM's workspace), or read once from two places.
OF_KERNELS = {"lstm", "shared_table", "two_towers"}


def recorded(name: str, counts: bool) -> list[Any]:
    """What a forward of a model of the zoo does, each module without children a unit of its own."""
    model, inputs, function = zoo.build(name)
    holder = small_modules.Shown(model)
    asked = subjects.Subject(model, function, lambda h: setattr(holder, "handler", h), (holder, *inputs), counts=counts)
    asked.attach(SimpleNamespace(backward=lambda losses: None))
    units = [path for path, module in model.named_modules() if path and not list(module.children())]
    with shapes.ShapesOnly(model.parameters()) if counts else nullcontext():
        events = profiles.profile(asked, units).events
    told = name not in OF_KERNELS
    return [(e.name, e.position, e.replicated, e.parameters, e.changes, told and e.saved_bytes) for e in events]


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(set(zoo_names.ZOO) - {"experts", "data_dependent"}))
def test_counting_finds_the_operations_that_are_timed(name: str) -> None:
    assert recorded(name, True) == recorded(name, False)


def test_plans_for_several_numbers_of_ranks_come_from_one_profile() -> None:
    asked = replace(subject(blocks(8, 512), torch.randn(512, 512)), counts=True)
    ways = [way for way in parallel_ways.ways_for(4, wishes_of.Wish(ranks=4, microbatches=8)) if way.tensor == 1]
    plans = planning.make_plans(asked, [way.wish for way in ways])
    assert [plan.pipeline["microbatches"] for plan in plans if isinstance(plan, plan_files.Plan)] == [8, 4, 2]
    assert [plan.stages for plan in plans if isinstance(plan, plan_files.Plan)] == [4, 2, 1]
    assert plans[0] == planning.make_plan(asked, ways[0].wish)
    weights = holding.weights_of(asked.root, 2)
    found = degrees.choices(ways, plans, weights, limit_mib=0)
    assert [(one.way.stages, one.way.replicas, one.sharded, one.degree) for one in found] == [
        (4, 1, False, 1), (2, 2, False, 1), (2, 2, True, 1), (2, 2, False, 2),
        (1, 4, False, 1), (1, 4, True, 1), (1, 4, False, 2), (1, 4, False, 4),
    ]  # fmt: skip
    whole, shared, halves, quarters = found[4:]
    size = 16 * 512 * 513 * 4 / 2**20
    (held,) = holding.held_by_ranks(plans[2], ways[2])
    assert (held.values, held.gradients, held.states) == pytest.approx((size, size, 2 * size), rel=1e-3)
    # Gradients lie in buckets as well when they are summed, activations are gone by then.
    at_once = max(held.activations, size)
    assert whole.memory_mib - shared.memory_mib == pytest.approx(3 / 4 * 2 * size, rel=1e-2)
    # A block and its gradient are whole while it runs, and the next block is: 3 of 8 blocks' parameters.
    assert whole.memory_mib - quarters.memory_mib == pytest.approx(
        (3 / 4 * 4 - 3 / 8) * size + at_once - held.activations, rel=1e-2
    )
    assert halves.memory_mib - quarters.memory_mib == pytest.approx(1 / 4 * 4 * size, rel=1e-2)
    assert halves.step_ms > whole.step_ms and quarters.step_ms > whole.step_ms
    assert degrees.chosen(found, 0) in found and degrees.chosen_lines(shared, found)[0].startswith(
        "chosen: {pipeline_parallel_degree: 1, microbatches: 2, shard_optimizer_state: true}; each of 4 replicas has"
    )
    assert "sharded_data_parallel_degree: 4}" in degrees.chosen_lines(quarters, found)[0]
    assert degrees.choice_lines(found)[-1].split()[:6] == ["1", "1", "4", "all", "by", "4"]
    tight = degrees.choices(ways, plans, weights, limit_mib=int(quarters.memory_mib) + 1)
    assert degrees.chosen(tight, 0).degree == 4
    with pytest.raises(PlanError, match="than 1 MiB on each: 1 stage with 4 replicas, all sharded by 4, would need 4"):
        degrees.chosen(degrees.choices(ways, plans, weights, limit_mib=1), 1)


def test_a_plan_measures_the_code_beside_modules_and_leaves_no_gate_in_them() -> None:
    asked = subject(blocks(4, 32), torch.randn(8, 32))
    kept = asked.root[0]._compiled_call_impl
    values, state = asked.root.state_dict(), torch.get_rng_state()
    trace = profiles.profile(asked, {"0", "1", "2", "3"})
    assert 0 < runtime.seconds_around(asked, trace) < float("inf")
    assert asked.root[0]._compiled_call_impl is kept and "_compiled_call_impl" not in vars(asked.root[1])
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, asked.root.state_dict()[name]) for name, value in values.items())


@pytest.mark.parametrize("states", [0, 1, 2])
def test_an_optimizers_step_is_measured_for_any_number_of_states(states: int) -> None:
    update = runtime.seconds_to_update(states)
    assert update.parameter > 0 and update.byte >= 0


@pytest.mark.parametrize("name", ["experts", "data_dependent"])
def test_a_plan_by_counting_says_that_the_forward_asks_for_values(name: str) -> None:
    model, inputs, function = zoo.build(name)
    holder = small_modules.Shown(model)
    asked = subjects.Subject(model, function, lambda h: setattr(holder, "handler", h), (holder, *inputs), counts=True)
    counted, asks, *_ = planning.make_plan(asked, wishes_of.Wish(ranks=1)).notes
    assert counted.startswith("operations were counted, not timed") and asks.startswith("the forward asks for values")


def test_a_unit_that_dominates_is_named_with_what_would_help() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8192), nn.Linear(8192, 1)).to("meta")
    plan = planning.make_plan(subject(model, torch.empty(8, 64, device="meta"), "meta"), wishes_of.Wish(ranks=3))
    assert any(note.startswith("1 alone is") and "no partition can be even" in note for note in plan.notes)


def test_where_no_stage_can_be_even_nothing_is_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, ...]] = []

    def counted(of: subjects.Subject, units: Any) -> Any:
        measured.append(tuple(units))
        return profiles.profile(of, units)

    monkeypatch.setattr("trainshed.parallel.plan.planner.profile", counted)
    model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 8192), nn.ReLU()), nn.Linear(8192, 1)).to("meta")
    planning.make_plan(subject(model, torch.empty(8, 64, device="meta"), "meta"), wishes_of.Wish(ranks=3))
    assert measured and len(measured) == len(set(measured))


def test_an_operation_that_returns_its_argument_holds_no_parameters() -> None:
    plan = planning.make_plan(subject(small_modules.Same(blocks()), torch.randn(8, 32)), wishes_of.Wish(ranks=4))
    assert plan.stages == 4 and plan.shared == ()


def test_shared_parameters_and_boundaries_are_in_the_plan() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    model[2].weight = model[0].weight
    plan = planning.make_plan(subject(model, torch.randn(2, 8)), wishes_of.Wish(ranks=2, pins={"1": 0, "2": 1}))
    assert plan.shared == ({"parameter": "0.weight", "stages": [0, 1]},)
    assert plan.boundaries[0]["bytes"] == 2 * 8 * 4


@pytest.mark.parametrize("virtual", [1, 2, 3])
@pytest.mark.parametrize("microbatches", [4, 6, 8, 16])
def test_a_backward_in_two_parts_leaves_the_bubble_of_the_papers_formula(virtual: int, microbatches: int) -> None:
    ranks, count = 4, 4 * virtual
    orders = order("interleavedzerobubble", ranks, virtual, microbatches)
    forward, inputs, weights = 2.0 / virtual, 1.25 / virtual, 0.75 / virtual
    seconds, busy = step_seconds(orders, [forward] * count, [inputs] * count, [0.0] * count, [weights] * count)
    assert busy == pytest.approx([4.0 * microbatches] * ranks)
    assert seconds - busy[0] == pytest.approx((ranks - 1) * (forward + inputs - weights))
    with pytest.raises(IndexError):
        step_seconds(orders, [forward] * count, [inputs] * count, [0.0] * count)


@pytest.mark.parametrize(("ranks", "virtual", "microbatches"), [(2, 1, 2), (3, 2, 2), (4, 1, 8), (4, 2, 6), (4, 3, 12)])
def test_the_simulated_work_is_what_torch_does_in_its_order(ranks: int, virtual: int, microbatches: int) -> None:
    from torch.distributed.pipelining import ScheduleInterleavedZeroBubble

    real = object.__new__(ScheduleInterleavedZeroBubble)
    real.n_local_stages, real.pp_group_size, real._n_microbatches = virtual, ranks, microbatches
    real.microbatches_per_round = microbatches // max(1, microbatches // ranks)
    kinds = {"FORWARD": "forward", "BACKWARD_INPUT": "backward", "BACKWARD_WEIGHT": "weight"}
    for rank, work in enumerate(order("interleavedzerobubble", ranks, virtual, microbatches)):
        actions = [action for action in real._calculate_single_rank_operations(rank) if action is not None]
        assert [tuple(piece) for piece in work] == [(kinds[a[1].name], a[0], a[2]) for a in actions]


def test_a_zero_bubble_plan_predicts_a_shorter_step_and_memory_for_what_waits() -> None:
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).to("meta")
    x, link = torch.empty(512, 4096, device="meta"), links.Link(1e-5, 1e12)
    wishes = [wishes_of.Wish(2, 2, schedule, 8, link=link) for schedule in ("interleaved1f1b", "interleavedzerobubble")]
    plain, split = (planning.make_plan(subject(model, x, "meta"), wish) for wish in wishes)
    assert plain.starts() == split.starts()
    assert split.predicted["step_ms"] < plain.predicted["step_ms"]
    assert split.predicted["bubble"] < plain.predicted["bubble"]
    assert wishes_of.Wish(4, 1, "interleavedzerobubble", 8).in_flight() == (4, 4, 4, 4)
    assert wishes_of.Wish(4, 1, "1f1b", 8).in_flight() == (4, 3, 2, 1)


def test_a_v_shaped_plan_keeps_as_much_as_its_order_and_sends_nothing_where_it_turns() -> None:
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).to("meta")
    x = torch.empty(512, 4096, device="meta")
    for schedule in ("zbvzerobubble", "dualpipev"):
        quick, slow = (
            planning.make_plan(subject(model, x, "meta"), wishes_of.Wish(1, 2, schedule, 4, link=links.Link(s, 1e12)))
            for s in (0, 0.1)
        )
        assert slow.predicted["step_ms"] - quick.predicted["step_ms"] < 500  # the last messages, no step between the halves
        assert wishes_of.Wish(4, 2, schedule, 2).in_flight() == (2,) * 7 + (1,)
    assert wishes_of.Wish(4, 2, "zbvzerobubble", 8).in_flight() == (8, 7, 6, 5, 4, 3, 2, 1)


@pytest.mark.parametrize(("schedule", "virtual"), [("gpipe", 1), ("1f1b", 1), ("interleaved1f1b", 2)])
@pytest.mark.parametrize("microbatches", [4, 8, 16])
def test_the_simulated_bubble_is_the_formulas(schedule: str, virtual: int, microbatches: int) -> None:
    ranks = 4
    work = [1.0 / virtual] * ranks * virtual
    seconds, busy = step_seconds(order(schedule, ranks, virtual, microbatches), work, work, [0.0] * len(work))
    formula = (ranks - 1) / (virtual * microbatches + ranks - 1)
    assert busy == pytest.approx([2.0 * microbatches] * ranks)
    assert 1 - busy[0] / seconds == pytest.approx(formula, abs=1e-9)


def test_measuring_a_layer_costs_the_same_however_many_come_before() -> None:
    layers = nn.Sequential(*[small_modules.Probe() for _ in range(40)])
    planning.make_plan(subject(layers, torch.randn(2, 8)), wishes_of.Wish(ranks=2, atomic=tuple(map(str, range(40)))))
    assert min(layers[39].seen) == min(layers[2].seen) < max(layers[2].seen) < max(layers[39].seen)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_measured_is_the_forward_that_is_recorded(ranks: int) -> None:
    net, x = small_modules.Odd(), torch.randn(6, 16)
    before = net(x)
    profiled = subject(net, x)
    measured: set[str] = set()  # a layer is so small that one measurement may round to nothing
    for _ in range(5):
        plan = planning.make_plan(profiled, wishes_of.Wish(ranks=ranks, atomic=("a", "b", "c", "d", "same", "inner")))
        measured |= {unit.unit for unit in plan.units if unit.backward_ms > 0}
        if measured >= set("abcd"):
            break
    trace = profiled.record(plan.unit_names)
    assert trace.calls == [unit.unit for unit in plan.units]
    assert measured >= set("abcd")
    assert torch.equal(net(x), before) and all(parameter.grad is None for parameter in net.parameters())


def test_planning_leaves_python_as_it_was() -> None:
    def fails(*_args: Any) -> Any:
        raise ValueError("no forward")

    before = gc.get_threshold()
    planning.make_plan(subject(blocks(), torch.randn(8, 32)), wishes_of.Wish(ranks=2))
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="no forward"):
        planning.make_plan(
            subjects.Subject(blocks(), fails, lambda handler: None, (torch.randn(8, 32),)), wishes_of.Wish(ranks=2)
        )
    assert gc.get_threshold() == before
