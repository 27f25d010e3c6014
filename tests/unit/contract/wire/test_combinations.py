"""Each row of the table of combinations is played: what it refuses is refused with its words, all else is taken."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from trainshed.contract.wire.combinations import FEATURES, TABLE, Combination
from trainshed.contract.wire.pipeline import NotServed, PipelineError, PipelineSettings, parameters_of, read_settings

HALVES = {"fp16", "bf16"}


def settings_of(*features: str) -> dict[str, Any]:
    """Settings that turn features on, and what each of them needs by itself."""
    values = {1: 2, False: True, "off": "all", "given": "auto"}
    found = {name: values[getattr(PipelineSettings, name)] for name in features}
    return {**found, **({"bf16": True} if "master_weights" in features and not HALVES & found.keys() else {})}


def taken(*features: str) -> bool:
    try:
        read_settings(settings_of(*features))
    except PipelineError:
        return False
    return True


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "+".join(row.of))
def test_what_a_row_refuses_is_refused_with_its_words(row: Combination) -> None:
    with pytest.raises(NotServed) as raised:
        read_settings(settings_of(*row.of), "mp_parameters")
    assert (raised.value.message, raised.value.hint) == (f"mp_parameters: {row.message}", row.hint)
    assert not row.needs or taken(*row.of, row.needs, "prescaled_batch")
    assert all(taken(*others) for others in combinations(row.of, len(row.of) - 1)), "fewer features are refused already"


def test_what_no_row_names_is_taken() -> None:
    refused = {frozenset(row.of) for row in TABLE}
    wrong = [pair for pair in combinations(FEATURES, 2) if taken(*pair) == (frozenset(pair) in refused)]
    assert not wrong


def test_rows_name_features_that_are_settings() -> None:
    assert set(FEATURES) <= set(PipelineSettings._fields)
    assert all({*row.of} <= FEATURES.keys() and row.needs in ("", *FEATURES) and row.why and row.hint for row in TABLE)
    assert len({row.of for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("name", ["tensor_parallel_degree", "sharded_data_parallel_degree", "context_parallel_degree"])
@pytest.mark.parametrize("wanted", [True, "auto"])
def test_activations_on_the_cpu_are_refused_before_anything_starts(name: str, wanted: object) -> None:
    """Where modules, parameters or sequences are divided and no stage runs them."""
    given = {name: 2, "sm_activation_offloading": wanted}
    found, problems = parameters_of(given, "")
    assert found == {}
    assert problems == (
        (
            "mp_parameters",
            f"offload_activations together with {name} needs stages",
            "use torch.autograd.graph.save_on_cpu in the model, or activation checkpoints",
        ),
    )
    assert parameters_of({**given, "partitions": 2, "prescaled_batch": True}, "")[1] == ()


def test_two_hyperparameters_are_judged_together() -> None:
    amazons = {"tensor_parallel_degree": 2, "partitions": 2}
    assert parameters_of(amazons, '{"prescaled_batch": true}') == ({**amazons, "prescaled_batch": True}, ())
    for own, where, words in (
        ('{"microbatches": 2}', "mp_parameters", "together with pipeline_parallel_degree needs prescaled_batch"),
        ('{"prescaled_batch": true, "trian": 1}', "trainshed_pipeline", "trian: not a pipeline setting"),
        ('{"context_parallel_degree": 2, "degrees": "auto"}', "trainshed_pipeline", "degrees = 'auto' together with"),
    ):
        found, [problem] = parameters_of(amazons, own)
        assert found == {} and problem[0] == where and words in problem[1], problem


def test_what_a_choice_of_degrees_may_still_bring_is_not_missed() -> None:
    for wanted in ("activation_checkpointing", "offload_activations"):
        given = {"degrees": "auto", "tensor_parallel_degree": 2, wanted: "all"}
        assert read_settings(given).degrees == "auto"
        with pytest.raises(NotServed, match=f"{wanted} together with tensor_parallel_degree needs stages"):
            read_settings({**given, "partitions": 1})
