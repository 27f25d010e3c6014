"""Pipelines with replicas, checkpoints, evaluation, faults."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
import workers  # noqa: E402

pytestmark = pytest.mark.torch
STEPS = 20


def _assert_same_state(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"placement_strategy": "spread", "shard_optimizer_state": True},
        {"pipeline": "interleavedzerobubble", "virtual_stages": 2},
    ],
)
def test_two_replicas_of_two_stages_train_as_one_process_on_the_global_batch(options: dict[str, Any]) -> None:
    settings = {"partitions": 2, "microbatches": 4, "ddp": True, **options}
    expected = workers.one_process_curve(STEPS, 0.5)
    found = ranks.run(4, "workers:train", settings, STEPS, 0.5, True)
    for rank in found:
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert rank["norms"] == pytest.approx(expected["norms"], rel=1e-4)
        _assert_same_state(rank["state"], expected["state"])
    parameters = len(list(workers.tied_model().parameters()))
    assert len(found[0]["optimizer"]["state"]) == parameters
    if "shard_optimizer_state" in options:
        assert sum(rank["states"] for rank in found) <= parameters + 1  # the tied table is on two stages


def test_a_rank_holds_the_memory_of_its_own_stage_alone() -> None:
    found = ranks.run(2, "workers:train", {"partitions": 2, "microbatches": 4}, 1)
    parameters = dict(workers.tied_model().named_parameters())
    whole = sum(parameter.numel() * 4 for parameter in parameters.values())
    table = parameters["embed.weight"].numel() * 4
    one_element_each = 4 * 2 * len(parameters)
    assert whole <= sum(rank["held"] for rank in found) <= whole + table + one_element_each


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks without cores of their own wait while rank 0 measures")
def test_while_rank_0_measures_the_other_ranks_of_its_host_compute_too(tmp_path: Path) -> None:
    """Alone it would find the memory faster than it is in training. Rank 0's forward waits here for one of rank 1."""
    assert ranks.run(2, "workers:measure_in_company", str(tmp_path)) == [True, True]


def test_random_numbers_do_not_depend_on_the_number_of_stages() -> None:
    found = {
        degree: ranks.run(degree, "workers:train_with_dropout", {"partitions": degree, "microbatches": 4})[0]["losses"]
        for degree in (1, 2)
    }
    assert found[1] == pytest.approx(found[2], rel=1e-6)


def test_four_stages_go_on_from_a_checkpoint_of_two_with_the_same_losses() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/checkpoint"
        expected = workers.one_process_curve(6, 1e9)["losses"]
        first = ranks.run(2, "workers:train_and_save", {"partitions": 2, "microbatches": 4}, 6, 3, path)[0]
        assert {entry.name for entry in Path(folder).iterdir()} == {"checkpoint"}
        second = ranks.run(4, "workers:resume", {"partitions": 4, "microbatches": 4}, 6, path)[0]
        assert first["losses"] + second["losses"] == pytest.approx(expected, rel=1e-5)
        model = workers.tied_model()
        model.load_state_dict(second["state"])
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.load_state_dict(second["optimizer"])
        assert all(int(entry["step"]) == 6 for entry in optimizer.state.values())


@pytest.mark.parametrize(("ranks_in_all", "degree"), [(4, 2), pytest.param(2, 2, marks=pytest.mark.heavy)])
def test_a_sharded_model_trains_as_one_process_and_each_rank_holds_its_part(ranks_in_all: int, degree: int) -> None:
    settings = {"partitions": 1, "sharded_data_parallel_degree": degree, "microbatches": 2, "ddp": True}
    expected = workers.one_process_curve(5, 0.5)
    for rank in ranks.run(ranks_in_all, "workers:train", settings, 5, 0.5, True):
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert rank["norms"] == pytest.approx(expected["norms"], rel=1e-4)
        _assert_same_state(rank["state"], expected["state"])
        parameters = list(workers.tied_model().parameters())
        assert len(rank["optimizer"]["state"]) == len(parameters)
        assert rank["held"] < 0.7 * sum(parameter.numel() * 4 for parameter in parameters)


def test_a_sharded_model_goes_on_from_a_pipelines_checkpoint_and_back() -> None:
    sharded = {"partitions": 1, "sharded_data_parallel_degree": 2, "microbatches": 2, "ddp": True}
    expected = workers.one_process_curve(6, 1e9)["losses"]
    with tempfile.TemporaryDirectory() as folder:
        one, two = f"{folder}/one", f"{folder}/two"
        found = ranks.run(2, "workers:train_and_save", {"partitions": 2, "microbatches": 4}, 6, 2, one)[0]["losses"]
        found += ranks.run(2, "workers:resume_and_save", sharded, 6, 4, one, two)[0]["losses"]
        found += ranks.run(2, "workers:resume", {"partitions": 2, "microbatches": 4}, 6, two)[0]["losses"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"partitions": 2, "microbatches": 2},
        {"partitions": 2, "microbatches": 2, "pipeline": "interleavedzerobubble"},
        {"partitions": 1, "sharded_data_parallel_degree": 2, "microbatches": 2},
    ],
)
def test_in_float16_gradients_come_out_unscaled_and_an_overflow_skips_the_step_everywhere(settings: dict[str, Any]) -> None:
    found = ranks.run(2, "workers:in_float16", settings, [1.0, 1024.0, 2.0**40])
    for plain, scaled, overflowing in found:
        assert scaled["scales"] == [1024.0] * 3 and scaled["moved"]
        assert scaled["types"] == {"torch.float16"}
        assert plain["losses"] == pytest.approx(scaled["losses"], rel=1e-2)
        for name, gradient in plain["gradients"].items():
            torch.testing.assert_close(scaled["gradients"][name], gradient, rtol=1e-2, atol=1e-4)
        assert scaled["norm"] == pytest.approx(plain["norm"], rel=1e-2) and plain["norm"] == found[0][0]["norm"]
        assert overflowing["scales"] == [2.0**40, 2.0**39, 2.0**38] and not overflowing["moved"]


def test_a_model_that_compiles_parts_of_itself_trains_as_one_that_does_not() -> None:
    found = ranks.run(2, "workers:compiled_parts")
    assert all(found) and all(distance <= 1e-6 for rank in found for distance in rank.values())


@pytest.mark.parametrize(("schedule", "virtual"), [("interleaved", 1), ("interleavedzerobubble", 2)])
def test_evaluation_and_other_batch_sizes_give_what_the_whole_model_gives(schedule: str, virtual: int) -> None:
    for rank in ranks.run(2, "workers:evaluate_then_train", schedule, virtual):
        assert rank["evaluated"] == [True] * 4
        assert rank["losses"] == [2] * 4


@pytest.mark.parametrize("schedule", ["interleaved", "interleavedzerobubble"])
def test_gradients_accumulate_and_an_overflow_on_one_stage_skips_the_step_on_all(schedule: str) -> None:
    for rank in ranks.run(2, "workers:accumulate_and_scale", schedule):
        assert rank == {"doubled": True, "kept": True, "scale": 4.0}


def test_what_is_sent_keeps_its_layout_so_that_products_add_in_the_same_order() -> None:
    found = ranks.run(2, "workers:cut_inside_attention")
    assert all(len(rank) >= 4 and set(rank) == {0.0} for rank in found)


def test_ranks_of_one_pipeline_with_different_batches_are_an_error() -> None:
    for text in ranks.run(2, "workers:different_batches"):
        assert text == "rank 1 was given another batch than rank 0 of the same pipeline"


def test_when_one_rank_is_killed_every_rank_ends_with_the_reason() -> None:
    with tempfile.TemporaryDirectory() as out:
        processes = ranks.start(3, "workers:endless", 3, out=out)
        try:
            for process in processes:
                assert process.stdout is not None
                while b"training" not in (line := process.stdout.readline()):
                    assert line, "a rank ended before it trained"
            processes[1].kill()
            logs = [process.communicate(timeout=300)[0].decode() for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    for rank in (0, 2):
        assert processes[rank].returncode not in (0, None)
        assert f"rank {rank} lost another rank of the job" in logs[rank]
