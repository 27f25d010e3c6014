"""A population: who goes on from whom, and with which values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.runner.job.job import Job
from trainshed.studio.batches.folder import COMPLETED, FAILED
from trainshed.studio.tune.population import Member, checkpoints_of, forget_before, inherit, is_waiting, member
from trainshed.studio.tune.space import CATEGORICAL, CONTINUOUS, INTEGER, LOG, REVERSE_LOG, Parameter, fits
from trainshed.studio.tune.trial import Trial
from trainshed.studio.tune.tuning import MAXIMIZE, POPULATION, Objective, Strategy, TuningJob
from trainshed.studio.tune.tuning_folder import TuningFolder

SPACE = (
    Parameter("rate", CONTINUOUS, 1e-4, 1.0, LOG),
    Parameter("beta", CONTINUOUS, 0.5, 0.999, REVERSE_LOG),
    Parameter("layers", INTEGER, 1, 9, step="1"),
    Parameter("kind", CATEGORICAL, categories=(("a", True), ("b", True))),
    Parameter("drop", CONTINUOUS, 0.0, 0.5, step="0.05", when=(("kind", ("b",)),)),
)
TUNING = TuningJob(
    "t", Job("t"), SPACE, Objective("loss"),
    Strategy(POPULATION, size=8, generations=4, length="epochs", interval=2),
)  # fmt: skip


def generation(tuning: TuningJob, before: list[Trial], losses: list[float | None]) -> list[Trial]:
    """One more generation whose members end with these objectives; None stands for a failure."""
    made = []
    for loss in losses:
        number = len(before) + len(made) + 1
        found = member(tuning, before, number)
        assert found is not None
        state = FAILED if loss is None else COMPLETED
        made.append(Trial(number, found.values, state, value=loss, parent=found.parent))
    return before + made


LOSSES = [0.5, 0.1, 0.8, 0.2, 0.9, 0.3, 0.4, 0.6]  # the best are 2 and 4, the worst 5 and 3


def test_the_worst_go_on_from_the_best_with_other_values_and_all_else_from_itself() -> None:
    trials = generation(TUNING, generation(TUNING, [], LOSSES), LOSSES)

    first, second = trials[:8], trials[8:]
    assert [trial.parent for trial in first] == [0] * 8 and len({str(trial.values) for trial in first}) == 8
    for place, trial in enumerate(second):
        if place in (2, 4):
            assert trial.parent in (2, 4) and trial.values != first[trial.parent - 1].values
        else:
            assert trial.parent == place + 1 and trial.values == first[place].values
    assert all(fits(SPACE, trial.values) for trial in trials), "changed values are in their ranges and on their steps"


def test_a_member_that_has_failed_is_replaced_and_none_is_where_all_have() -> None:
    trials = generation(TUNING, [], [None, *LOSSES[1:]])

    found = member(TUNING, trials, 9)
    assert found is not None and found.parent in (2, 4)
    assert member(TUNING, generation(TUNING, [], [None] * 8), 9) is None
    maximize = replace(TUNING, objective=Objective("acc", MAXIMIZE))
    assert {one.parent for n in (10, 12) if (one := member(maximize, trials, n))} <= {3, 5}, "there the lowest are behind"


def test_numbers_change_by_a_fifth_and_stay_in_their_ranges() -> None:
    ends = {"rate": "1.0", "beta": "0.999", "layers": "9", "kind": "b", "drop": "0.5"}
    trials = [Trial(number, ends, COMPLETED, value=float(number)) for number in range(1, 9)]

    found = [member(replace(TUNING, strategy=replace(TUNING.strategy, seed=seed)), trials, 15) for seed in range(40)]
    values = [one.values for one in found if one is not None]
    assert {one["rate"] for one in values} == {"0.8", "1.0"} and {one["layers"] for one in values} == {"7", "9"}
    assert {round(float(one["beta"]), 6) for one in values} == {0.9988, 0.999}
    assert {one.get("drop") for one in values} == {"0.4", "0.5", None}, "None where the kind was drawn anew"
    assert all(fits(SPACE, one) for one in values)


@pytest.mark.exact
def test_a_tuner_that_was_killed_finds_the_same_members() -> None:
    trials = generation(TUNING, [], LOSSES)
    assert [member(TUNING, trials, number) for number in range(9, 17)] == [
        member(TUNING, [*trials, Trial(9, {})], number) for number in range(9, 17)
    ]


def test_a_generation_waits_for_the_one_before() -> None:
    trials = generation(TUNING, [], LOSSES)
    assert not is_waiting(TUNING, trials, 9)
    assert is_waiting(TUNING, [*trials[:-1], Trial(8, {})], 9) and not is_waiting(TUNING, [Trial(1, {})], 2)


def test_checkpoints_are_inherited_once_and_forgotten_when_nobody_can_need_them(tmp_path: Path) -> None:
    folder = TuningFolder(str(tmp_path))
    first = Path(checkpoints_of(folder, 3), "step-000000000002")
    first.mkdir(parents=True)
    (first / "weights").write_text("learned")

    inherit(folder, Trial(9, {}, parent=3))
    copied = Path(checkpoints_of(folder, 9), "step-000000000002/weights")
    assert copied.read_text() == "learned"
    copied.write_text("more")
    inherit(folder, Trial(9, {}, parent=3))
    assert copied.read_text() == "more", "a trial that goes on keeps its own"
    inherit(folder, Trial(1, {}))

    forget_before(folder, TUNING.strategy, 10)
    assert first.exists()
    forget_before(folder, TUNING.strategy, 17)
    assert not first.exists() and copied.exists()


@pytest.mark.parametrize(
    ("held", "hint"), [("", "checkpointer.save(step)"), ("checkpoint-300", "bring their learning rate back")]
)
def test_a_parent_without_a_checkpoint_of_ours_is_refused(tmp_path: Path, held: str, hint: str) -> None:
    folder = TuningFolder(str(tmp_path))
    Path(checkpoints_of(folder, 3), held).mkdir(parents=True)

    with pytest.raises(TrainshedError, match="trial 3 has left no checkpoint of a Checkpointer") as caught:
        inherit(folder, Trial(9, {}, parent=3))
    assert hint in caught.value.hint and not Path(checkpoints_of(folder, 9)).exists()


def test_the_first_generation_has_no_parents() -> None:
    assert isinstance(member(TUNING, [], 1), Member)
