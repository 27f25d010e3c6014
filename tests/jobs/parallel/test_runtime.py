"""Pipelines with replicas, checkpoints, evaluation, faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import ranks

from support.lazy import Lazy
from support.paths import ROOT, TOOLKIT

torch = Lazy("torch")
workers = Lazy("workers")
closeness = Lazy("closeness")

pytestmark = pytest.mark.torch
STEPS = 8
TWO = {"partitions": 2, "microbatches": 4}


def assert_alike(rank: dict[str, Any], expected: dict[str, Any]) -> None:
    closeness.assert_trained_alike(rank["losses"], expected["losses"], rtol=1e-5)
    closeness.assert_trained_alike(rank["norms"], expected["norms"], rtol=1e-4)
    closeness.assert_trained_alike(rank["state"], expected["state"], rtol=1e-5, atol=1e-5)


@pytest.mark.exact
@pytest.mark.on_ranks("workers:train_clipped", STEPS, 0.5, world=4)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({**TWO, "ddp": True}, marks=pytest.mark.spine),
        {**TWO, "ddp": True, "placement_strategy": "spread", "shard_optimizer_state": True},
        {**TWO, "ddp": True, "pipeline": "interleavedzerobubble", "virtual_stages": 2},
        {**TWO, "ddp": True, "sharded_data_parallel_degree": 2},
    ],
)
def test_two_replicas_of_two_stages_train_as_one_process_on_the_global_batch(
    settings: dict[str, Any], found: list[Any]
) -> None:
    expected = workers.one_process_curve(STEPS, 0.5)
    for rank in found:
        assert_alike(rank, expected)
    parameters = len(list(workers.tied_model().parameters()))
    assert len(found[0]["optimizer"]["state"]) == parameters
    if "shard_optimizer_state" in settings:
        assert sum(rank["states"] for rank in found) <= parameters + 1  # the tied table is on two stages


@pytest.mark.on_ranks("workers:train", TWO, 1, world=2)
def test_a_rank_holds_the_memory_of_its_own_stage_alone(found: list[Any]) -> None:
    parameters = dict(workers.tied_model().named_parameters())
    whole = sum(parameter.numel() * 4 for parameter in parameters.values())
    table = parameters["embed.weight"].numel() * 4
    one_element_each = 4 * 2 * len(parameters)
    assert whole <= sum(rank["held"] for rank in found) <= whole + table + one_element_each


@pytest.mark.on_ranks("workers:measure_in_company", world=2)
def test_while_rank_0_measures_the_other_ranks_of_its_host_compute_too(found: list[Any]) -> None:
    """Alone it would find the memory faster than it is in training. Rank 0's forward waits here for one of rank 1."""
    if found == [None, None]:
        pytest.skip("ranks without cores of their own wait while rank 0 measures")
    assert found == [True, True]


@pytest.mark.exact
@pytest.mark.on_ranks("workers:train_with_dropout", TWO, world=2)
@pytest.mark.usefixtures("no_pipeline")
def test_random_numbers_do_not_depend_on_the_number_of_stages(found: list[Any]) -> None:
    alone = workers.train_with_dropout({"partitions": 1, "microbatches": 4})

    closeness.assert_trained_alike(found[0]["losses"], alone["losses"], rtol=1e-6)


@pytest.mark.exact
@pytest.mark.spine
@pytest.mark.on_ranks("workers:train_in_parts", [{**TWO, "ddp": True}, {**TWO, "partitions": 4}], "four", 6, world=4)
def test_four_stages_go_on_from_a_checkpoint_of_two_with_the_same_losses(found: list[Any]) -> None:
    closeness.assert_trained_alike(found[0]["losses"], workers.one_process_curve(6, 1e9)["losses"], rtol=1e-5)
    assert found[0]["names"] == ["checkpoint"]
    model = workers.tied_model()
    model.load_state_dict(found[0]["state"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(found[0]["optimizer"])
    assert all(int(entry["step"]) == 6 for entry in optimizer.state.values())


@pytest.mark.exact
@pytest.mark.heavy
def test_a_new_start_of_other_ranks_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    first = ranks.run(2, "workers:first_part", TWO, 6, 3, path)[0]
    second = ranks.run(4, "workers:other_part", {**TWO, "partitions": 4}, 6, path)[0]
    closeness.assert_trained_alike(first + second, workers.one_process_curve(6, 1e9)["losses"], rtol=1e-5)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("world", "degree"),
    [
        pytest.param(2, 2, marks=[pytest.mark.spine, pytest.mark.on_ranks("workers:train_sharded", 5, 0.5, world="world")]),
        pytest.param(4, 2, marks=pytest.mark.on_ranks("workers:train_sharded", 5, 0.5, world="world")),
    ],
)
def test_a_sharded_model_trains_as_one_process_and_each_rank_holds_its_part(
    world: int, degree: int, found: list[Any]
) -> None:
    expected = workers.one_process_curve(5, 0.5)
    for rank in found:
        assert_alike(rank, expected)
        parameters = list(workers.tied_model().parameters())
        assert len(rank["optimizer"]["state"]) == len(parameters)
        assert rank["held"] < 0.7 * sum(parameter.numel() * 4 for parameter in parameters)


@pytest.mark.exact
@pytest.mark.heavy
def test_shards_of_stages_are_replicated_where_replicas_are_more() -> None:
    settings = {**TWO, "microbatches": 2, "ddp": True, "sharded_data_parallel_degree": 2}
    expected = workers.one_process_curve(4, 0.5)
    for rank in ranks.run(8, "workers:train_clipped", 4, 0.5, settings):
        assert_alike(rank, expected)


@pytest.mark.heavy
def test_divided_stages_of_gpt2_and_llama_train_as_one_process_and_go_on_with_other_degrees() -> None:
    ranks.run(4, "trust.tensor_stages:gpt2_and_llama")


@pytest.mark.heavy
def test_stages_tensor_groups_and_replicas_train_as_one_process() -> None:
    ranks.run(8, "trust.tensor_stages:three_dimensions")


@pytest.mark.heavy
def test_stages_tensor_groups_and_shards_train_as_one_process_and_go_on_with_other_degrees() -> None:
    ranks.run(8, "trust.sharded_part_stages:three_dimensions")


SHARDED = {"partitions": 1, "sharded_data_parallel_degree": 2, "microbatches": 2, "ddp": True}


@pytest.mark.exact
@pytest.mark.on_ranks("workers:train_in_parts", [TWO, SHARDED, TWO], "sharded", 6, world=2)
def test_a_sharded_model_goes_on_from_a_pipelines_checkpoint_and_back(found: list[Any]) -> None:
    closeness.assert_trained_alike(found[0]["losses"], workers.one_process_curve(6, 1e9)["losses"], rtol=1e-5)


@pytest.mark.on_ranks("workers:in_float16", [1.0, 1024.0, 2.0**40], world=2)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"partitions": 2, "microbatches": 2}, marks=pytest.mark.spine),
        {"partitions": 2, "microbatches": 2, "pipeline": "interleavedzerobubble"},
        {"partitions": 1, "sharded_data_parallel_degree": 2, "microbatches": 2},
        {"partitions": 1, "tensor_parallel_degree": 2, "microbatches": 2},
    ],
)
def test_in_float16_gradients_come_out_unscaled_and_an_overflow_skips_the_step_everywhere(
    settings: dict[str, Any], found: list[Any]
) -> None:
    for plain, scaled, overflowing in found:
        assert scaled["scales"] == [1024.0] * 3 and scaled["moved"]
        assert scaled["types"] == {"torch.float16"}
        assert plain["losses"] == pytest.approx(scaled["losses"], rel=1e-2)
        for name, gradient in plain["gradients"].items():
            torch.testing.assert_close(scaled["gradients"][name], gradient, rtol=1e-2, atol=1e-4)
        assert scaled["norm"] == pytest.approx(plain["norm"], rel=1e-2) and plain["norm"] == found[0][0]["norm"]
        assert overflowing["scales"] == [2.0**40, 2.0**39, 2.0**38] and not overflowing["moved"]


@pytest.mark.exact
@pytest.mark.on_ranks("workers:compiled_parts", world=2)
def test_a_model_that_compiles_parts_of_itself_trains_as_one_that_does_not(found: list[Any]) -> None:
    assert all(found) and all(distance <= 1e-6 for rank in found for distance in rank.values())


@pytest.mark.exact
@pytest.mark.on_ranks("workers:evaluate_then_train", world=2)
@pytest.mark.parametrize(
    ("schedule", "virtual"), [pytest.param("interleaved", 1, marks=pytest.mark.spine), ("interleavedzerobubble", 2)]
)
def test_evaluation_and_other_batch_sizes_give_what_the_whole_model_gives(
    schedule: str, virtual: int, found: list[Any]
) -> None:
    for rank in found:
        assert rank["evaluated"] == [True] * 4
        assert rank["losses"] == [2] * 4


@pytest.mark.on_ranks("workers:accumulate_and_scale", world=2)
@pytest.mark.parametrize("schedule", ["interleaved", "interleavedzerobubble"])
def test_gradients_accumulate_and_an_overflow_on_one_stage_skips_the_step_on_all(schedule: str, found: list[Any]) -> None:
    for rank in found:
        assert rank == {"doubled": True, "kept": True, "scale": 4.0}


@pytest.mark.exact
@pytest.mark.on_ranks("workers:cut_inside_attention", world=2)
def test_what_is_sent_keeps_its_layout_so_that_products_add_in_the_same_order(found: list[Any]) -> None:
    assert all(len(rank) >= 4 and set(rank) == {0.0} for rank in found)


@pytest.mark.on_ranks("workers:different_batches", world=2)
def test_ranks_of_one_pipeline_with_different_batches_are_an_error(found: list[Any]) -> None:
    for text in found:
        assert text == "rank 1 was given another batch than rank 0 of the same pipeline"


LATE = "import trainshed.parallel as pipe; from support import late_thread; pipe.init({}); late_thread.begin()"


def test_a_script_that_just_ends_lets_gloos_threads_put_down_their_work() -> None:
    """Else they may abort it; here nothing of `train` is in the process."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLKIT), str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", LATE], env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "put down\n"), done.stderr


@pytest.mark.spine
@pytest.mark.safety
def test_when_one_rank_is_killed_every_rank_ends_with_the_reason() -> None:
    with tempfile.TemporaryDirectory() as out, ranks.started(3, "workers:endless", 3, out=out) as processes:
        for rank, process in enumerate(processes):
            while "training" not in ranks.log(out, rank):
                assert process.is_alive(), f"a rank ended before it trained:\n{ranks.log(out, rank)}"
                time.sleep(0.05)
        processes[1].kill()
        for process in processes:
            process.join(ranks.LIMIT)
        for rank in (0, 2):
            assert processes[rank].exitcode not in (0, -signal.SIGKILL)
            assert f"rank {rank} lost another rank of the job" in ranks.log(out, rank)
