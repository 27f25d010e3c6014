"""Which features of parallel training tests train together, and docs/reference/combinations.md, which tells it."""

from __future__ import annotations

from itertools import combinations

from trainshed.contract.wire.combinations import FEATURES, TABLE

STAGES, TENSOR, CONTEXT = "pipeline_parallel_degree", "tensor_parallel_degree", "context_parallel_degree"
SHARDS, STATES, DELAYED = "sharded_data_parallel_degree", "shard_optimizer_state", "delayed_parameter_initialization"
AGAIN, ON_CPU, STATES_ON_CPU = "activation_checkpointing", "offload_activations", "offload_optimizer_state"
MASTERS, AUTO = "master_weights", "degrees"
HALF = ("bf16", MASTERS)

# Cases of jobs/parallel/trust, and the features that one step in them has. `trust.table.play` holds them to it.
CASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "tensor_stages:divided_stages_between_steps": ((STAGES, TENSOR),),
    "replicas:experts_with_shared_optimizer_states": ((STAGES, STATES),),
    "context_stages:sequences_in_stages_that_keep_activations_elsewhere_or_parameters_in_half": (
        (STAGES, CONTEXT, SHARDS, *HALF),
    ),
    "context_stages:a_model_without_values_divides_sequences_in_stages": ((STAGES, CONTEXT, DELAYED),),
    "context_stages:blocks_of_stages_that_run_again": ((STAGES, CONTEXT, AGAIN),),
    "context:optimizer_states_that_are_shared_out": ((CONTEXT, STATES),),
    "context_parts:models_that_are_divided_twice_and_sharded": ((TENSOR, CONTEXT, SHARDS),),
    "recomputed:modules_of_divided_stages_in_half_precision_run_again": ((STAGES, TENSOR, AGAIN, *HALF),),
    "recomputed:modules_of_divided_and_sharded_stages_run_again": ((STAGES, SHARDS, AGAIN), (STAGES, STATES, AGAIN)),
    "recomputed:modules_without_values_run_again": ((STAGES, TENSOR, DELAYED, AGAIN),),
    "recomputed:inputs_of_what_runs_again_may_go_to_the_cpu": ((STAGES, ON_CPU, AGAIN),),
    "offloaded:what_comes_back_to_divided_stages_is_what_went": ((STAGES, TENSOR, ON_CPU),),
    "half_in_parts:states_that_are_shared_out_may_lie_on_the_cpu": ((STAGES, STATES, STATES_ON_CPU, "fp16", MASTERS),),
    "half_in_parts:models_without_values_get_them_in_parts_in_half_precision": (
        (STAGES, STATES, DELAYED, *HALF),
        (TENSOR, SHARDS, DELAYED, *HALF),
    ),
    "in_half:states_on_the_cpu_are_those_beside_the_parameters": ((STATES, STATES_ON_CPU, *HALF),),
    "tensor:two_groups_with_shared_states": ((TENSOR, STATES),),
    "sharded_stages:in_float16_an_overflow_of_one_rank_skips_the_step_on_all": ((STAGES, SHARDS, "fp16"),),
    "sharded_parts:overflows_of_one_rank_skip_the_step_of_sharded_parts": ((TENSOR, SHARDS, "fp16"),),
}
# Other tests, below tests/.
TESTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "jobs/parallel/test_float8.py::test_stages_compute_as_torchao_by_hand_to_the_last_bit": ((STAGES, "fp8"),),
    "jobs/parallel/test_auto_degrees.py::test_what_is_given_stays_and_memory_forces_a_division": (
        (AUTO, STAGES, TENSOR),
        (AUTO, SHARDS),
    ),
}


def every() -> dict[str, tuple[tuple[str, ...], ...]]:
    """All of these tests, named from below tests/ as `file::function`, and what each trains together."""
    cases = {f"jobs/parallel/trust/{name.replace(':', '.py::')}": together for name, together in CASES.items()}
    return {**cases, **TESTS}


def refused_rows() -> list[tuple[str, ...]]:
    """What does not go together by itself."""
    return [(_named(row.of), row.verdict, row.why.removesuffix("."), row.hint) for row in TABLE]


def pair_rows() -> list[tuple[str, ...]]:
    """Of each feature: those that a test trains together with it, those that none does, and those that it never has."""
    never = {frozenset(row.of) for row in TABLE if not row.needs}
    trained = {frozenset(pair) for sets in every().values() for one in sets for pair in combinations(one, 2)}
    rows = []
    for name in _SHOWN:
        found: dict[str, list[str]] = {"trained": [], "untried": [], "refused": []}
        for other in _SHOWN:
            pair = frozenset((name, other))
            if name != other:
                found["refused" if pair in never else "trained" if pair in trained else "untried"].append(FEATURES[other])
        rows.append((f"{FEATURES[name]} (`{name}`)", *map(", ".join, found.values())))
    return rows


def test_rows() -> list[tuple[str, ...]]:
    """The tests, and the features of what each trains."""
    names = {test: "; ".join(", ".join(FEATURES[name] for name in one) for one in sets) for test, sets in every().items()}
    return [(f"`{test}`", said) for test, said in names.items()]


# How a tensor group gets its batches is no feature beside it.
_SHOWN = [name for name in FEATURES if name != "prescaled_batch"]


def _named(features: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" if name != AUTO else "`degrees = auto`" for name in features)
