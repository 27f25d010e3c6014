"""Ways of a job that leaves its degrees open: what is given stays, and what was measured is scaled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.contract.wire.pipeline import PipelineError, read_settings

open_ways: Any = Lazy("trainshed.parallel.plan.open_ways")
degrees: Any = Lazy("trainshed.parallel.plan.degrees")
ways: Any = Lazy("trainshed.parallel.plan.candidates")
wishes: Any = Lazy("trainshed.parallel.plan.plan_request")
choice: Any = Lazy("trainshed.parallel.choice")

pytestmark = pytest.mark.torch


def found(ranks: int = 4, rows: int = 16, **given: Any) -> list[Any]:
    settings = read_settings({"degrees": "auto", **given})
    terms = ways.Terms(given=settings.given())
    return open_ways.open_ways(ranks, wishes.Wish(ranks=ranks, microbatches=rows), terms, settings)


def test_all_that_is_open_is_looked_at_once() -> None:
    every = found()
    keys = [(one.stages, one.tensor, one.replicas, one.microbatches, one.stages > 1 and one.wish.schedule) for one in every]
    assert len(keys) == len(set(keys))
    assert {key[:3] for key in keys} == {(4, 1, 1), (2, 1, 2), (2, 2, 1), (1, 1, 4), (1, 2, 2), (1, 4, 1)}
    assert {key[4] for key in keys} == {False, "1f1b", "interleaved1f1b", "interleavedzerobubble", "zbvzerobubble"}
    # All of them train the same 16 rows.
    assert {one.wish.rows * one.microbatches * one.replicas for one in every} == {16.0}
    assert [one.stages for one in every] == sorted((one.stages for one in every), reverse=True)
    for one in every:
        assert one.problem or read_settings(one.settings())


@pytest.mark.parametrize(("given", "kept"), [
    ({"partitions": 2}, lambda one: one.stages == 2),
    ({"tensor_parallel_degree": 1}, lambda one: one.tensor == 1),
    ({"microbatches": 2}, lambda one: one.microbatches == 2 and one.wish.rows == 8 / one.replicas),
    ({"pipeline": "simple"}, lambda one: one.wish.schedule == "gpipe" and one.wish.virtual == 1),
    ({"pipeline": "interleaved1f1b", "virtual_stages": 2, "partitions": 4}, lambda one: one.wish.virtual == 2),
])  # fmt: skip
def test_what_is_given_stays(given: dict[str, Any], kept: Any) -> None:
    every = found(**given)
    assert every and all(kept(one) for one in every)


def test_what_does_not_go_together_with_what_is_given_is_a_problem() -> None:
    problems = {one.tensor: one.problem for one in found(bf16=True, master_weights=True, offload_optimizer_state=True)}
    assert not problems[1] and "offload_optimizer_state is not supported" in problems[2]
    (single,) = {one.problem for one in found(rows=2, microbatches=1) if one.replicas == 4}
    assert single == "the batch has 2 rows, and not 4"


def test_settings_that_were_given_come_back_with_those_that_were_chosen() -> None:
    settings = read_settings({"degrees": "auto", "partitions": 2, "atomic": ["head"], "pipeline": "zbvzerobubble"})
    assert "pipeline_parallel_degree" not in settings.open and "virtual_stages" not in settings.open
    assert read_settings(settings.given()) == settings
    whole = choice.chosen_settings(settings, {"microbatches": 8, "shard_optimizer_state": True})
    assert (whole.pipeline_parallel_degree, whole.microbatches, whole.virtual_stages) == (2, 8, 2)
    assert whole.atomic == ("head",) and whole.degrees == "given" and whole.open == ()


def test_what_a_process_has_beside_its_tensors_is_told_of_ranks_on_cpus_alone() -> None:
    files: Any = Lazy("trainshed.parallel.plan.plan_file")
    (way,) = (one for one in found() if (one.stages, one.replicas, one.microbatches) == (1, 4, 4))
    made = files.Plan(model="", pipeline={}, units=(files.PlanUnit("a", 0, 0),))
    cpus = degrees.Choice(replace(way, wish=replace(way.wish, on_cpus=True)), plan=made)
    assert cpus.facts()["process_mib"] > 0
    assert degrees.beside_lines(cpus) == ["a rank's process has 12 MiB beside its tensors"]
    gpus = degrees.Choice(way, plan=made)
    assert "process_mib" not in gpus.facts() and degrees.beside_lines(gpus) == []


def test_what_is_sharded_goes_with_the_other_settings() -> None:
    (way,) = (one for one in found() if (one.stages, one.replicas, one.microbatches) == (1, 4, 4))
    offloads = {"offload_optimizer_state": True}
    choices = [degrees.Choice(way), degrees.Choice(way, sharded=True), degrees.Choice(way, degree=4)]
    assert [open_ways.goes_with(one, {}) for one in choices] == [True, True, True]
    assert [open_ways.goes_with(one, offloads) for one in choices] == [True, True, False]


def test_what_needs_stages_is_chosen_with_stages_alone() -> None:
    for wanted in ("offload_activations", "activation_checkpointing"):
        for one in found(**{wanted: "all"}):
            divides = one.tensor > 1 and one.stages == 1
            assert (f"{wanted} together with tensor_parallel_degree needs stages" in one.problem) == divides
            sharded = degrees.Choice(one, degree=one.replicas)
            assert divides or open_ways.goes_with(sharded, {wanted: "all"}) == (one.stages > 1 or one.replicas == 1)


@pytest.mark.parametrize(("given", "words"), [
    ({"degrees": "many"}, "degrees = 'many': not one of given, auto"),
    ({"degrees": "auto", "open": ["microbatches"]}, "open: not a pipeline setting"),
    ({"degrees": "auto", "context_parallel_degree": 2}, "degrees = 'auto' together with context_parallel_degree"),
    ({"degrees": "auto", "virtual_stages": 2}, "virtual_stages = 2: needs pipeline"),
])  # fmt: skip
def test_wrong_settings_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError) as raised:
        read_settings(given)
    assert words in raised.value.message
