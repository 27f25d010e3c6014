"""Stages that go through the ranks and back: numbers as those of one process, whichever schedule goes on from there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ranks
import test_zoo
import zoo_names
from test_runtime import assert_alike

from support.lazy import Lazy

torch = Lazy("torch")
workers = Lazy("workers")
zoo = Lazy("zoo")
closeness = Lazy("closeness")

pytestmark = [pytest.mark.torch, pytest.mark.exact]
BOTH = ("zbvzerobubble", "dualpipev")
STEPS = 6


def settings(schedule: str, degree: int = 2, microbatches: int = 4, **more: Any) -> dict[str, Any]:
    return {"partitions": degree, "microbatches": microbatches, "pipeline": schedule, **more}


@pytest.mark.matrix
@pytest.mark.on_ranks("workers:pipeline", test_zoo.OURS, 2, world=2)
@pytest.mark.parametrize(("schedule", "virtual"), [("zbvzerobubble", 2)])
def test_gradients_and_updated_parameters_equal_those_of_one_process(schedule: str, virtual: int, found: list[Any]) -> None:
    assert not test_zoo.differences(test_zoo.OURS, found)


@pytest.mark.matrix
@pytest.mark.on_ranks("workers:pipeline", test_zoo.FEW, world="degree")
@pytest.mark.parametrize(
    ("degree", "schedule", "virtual"), [(2, "dualpipev", 2), (4, "dualpipev", 2), (4, "zbvzerobubble", 2)]
)
def test_on_more_ranks_too(degree: int, schedule: str, virtual: int, found: list[Any]) -> None:
    assert not test_zoo.differences(test_zoo.FEW, found)


@pytest.mark.matrix
@pytest.mark.on_ranks("workers:pipeline", list(zoo_names.ODD), 2, world=2)
@pytest.mark.parametrize(("schedule", "virtual"), [(schedule, 2) for schedule in BOTH])
def test_stages_that_cannot_split_run_their_backward_at_once(schedule: str, virtual: int, found: list[Any]) -> None:
    assert not test_zoo.differences(list(zoo_names.ODD), found)


@pytest.mark.on_ranks("workers:v_shaped", ["mlp", "two_towers"], 2, world=2)
@pytest.mark.parametrize(
    ("schedule", "microbatches"),
    [
        pytest.param("zbvzerobubble", 1, marks=pytest.mark.spine),
        pytest.param("dualpipev", 1, marks=pytest.mark.matrix),
        pytest.param("dualpipev", 2, marks=pytest.mark.spine),
        pytest.param("zbvzerobubble", 8, marks=[pytest.mark.heavy, pytest.mark.matrix]),
    ],
)
def test_other_numbers_of_microbatches_than_stages(schedule: str, microbatches: int, found: list[Any]) -> None:
    assert not test_zoo.differences(["mlp", "two_towers"], found, microbatches)


@pytest.mark.on_ranks("workers:few_parts", world=2)
@pytest.mark.parametrize(("schedule", "microbatches"), [("zbvzerobubble", 3), ("dualpipev", 4)])
def test_a_model_with_too_few_parts_gets_a_stage_a_rank(schedule: str, microbatches: int, found: list[Any]) -> None:
    assert found == [(2, 0.0)] * 2


@pytest.mark.on_ranks("workers:train_clipped", STEPS, 0.5, world=4)
@pytest.mark.parametrize("settings", [settings("zbvzerobubble", ddp=True), settings("dualpipev", 4, 16)])
def test_a_table_whose_stages_are_on_one_rank_trains_as_in_one_process(settings: dict[str, Any], found: list[Any]) -> None:
    expected = workers.one_process_curve(STEPS, 0.5)
    for rank in found:
        assert_alike(rank, expected)


@pytest.mark.on_ranks("workers:train", settings("zbvzerobubble"), 1, world=2)
def test_a_tied_table_is_held_once(found: list[Any]) -> None:
    parameters = list(workers.tied_model().parameters())
    whole = sum(parameter.numel() * 4 for parameter in parameters)
    assert whole <= sum(rank["held"] for rank in found) <= whole + 4 * 2 * len(parameters)


@pytest.mark.on_ranks("workers:train_with_dropout", world=2)
@pytest.mark.parametrize("settings", [settings(schedule) for schedule in BOTH])
@pytest.mark.usefixtures("no_pipeline")
def test_random_numbers_do_not_depend_on_the_way_of_the_stages(settings: dict[str, Any], found: list[Any]) -> None:
    alone = workers.train_with_dropout({"partitions": 1, "microbatches": 4})
    closeness.assert_trained_alike(found[0]["losses"], alone["losses"], rtol=1e-6)


@pytest.mark.on_ranks("workers:evaluate_then_train", world=2)
@pytest.mark.parametrize(("schedule", "virtual"), [(schedule, 2) for schedule in BOTH])
def test_evaluation_and_other_batch_sizes(schedule: str, virtual: int, found: list[Any]) -> None:
    assert all(rank == {"evaluated": [True] * 4, "losses": [2] * 4} for rank in found)


PARTS = [settings("zbvzerobubble"), settings("interleaved"), settings("dualpipev")]


@pytest.mark.on_ranks("workers:train_in_parts", PARTS, "turned", STEPS, world=2)
def test_a_run_goes_on_with_other_schedules_with_the_same_losses(found: list[Any]) -> None:
    closeness.assert_trained_alike(found[0]["losses"], workers.one_process_curve(STEPS, 1e9)["losses"], rtol=1e-5)


@pytest.mark.safety
@pytest.mark.heavy
@pytest.mark.usefixtures("no_pipeline")
def test_a_killed_run_goes_on_with_another_schedule_and_the_same_random_numbers() -> None:
    with tempfile.TemporaryDirectory() as out:
        path = str(Path(out, "checkpoint"))
        with ranks.started(2, "workers:killed_part", settings("zbvzerobubble"), STEPS, 3, path, out=out) as processes:
            for process in processes:
                process.join(ranks.LIMIT)
        first = json.loads(Path(f"{path}.0").read_text())
        second = ranks.run(4, "workers:part_after_a_kill", settings("dualpipev", 4), STEPS, path)[0]
    alone = workers.train({"partitions": 1, "microbatches": 4}, STEPS, drop=0.3)["losses"]
    closeness.assert_trained_alike(first + second, alone, rtol=1e-6)
