"""The report of a tuning job, and how importance is told."""

from __future__ import annotations

import json
import random

import pytest

from trainshed.runner.job.job import Job
from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED
from trainshed.studio.tune.space import CATEGORICAL, CONTINUOUS, LOG, Parameter
from trainshed.studio.tune.trial import Trial
from trainshed.studio.tune.tuner import TuningStatus
from trainshed.studio.tune.tuning import Objective, TuningJob
from trainshed.studio.tune.tuning_page import importance_of, page

SPACE = (
    Parameter("rate", CONTINUOUS, 1e-4, 1e-1, LOG),
    Parameter("noise", CONTINUOUS, 0.0, 1.0),
    Parameter("kind", CATEGORICAL, categories=(("<b>", True), ("x", True))),
)


def trials(count: int) -> list[Trial]:
    """The objective depends on rate alone."""
    draw = random.Random(0)
    found = []
    for number in range(1, count + 1):
        values = {one.name: one.at(draw.random()) for one in SPACE}
        found.append(Trial(number, values, COMPLETED, 0.0, float(number), value=float(values["rate"])))
    return found


def test_what_matters_is_told_from_what_does_not() -> None:
    found = dict(importance_of(SPACE, trials(60)))

    assert next(iter(found)) == "rate" and found["rate"] > 0.8
    assert found["noise"] < 0.15 and found["kind"] < 0.15


def test_few_trials_or_equal_ones_tell_nothing() -> None:
    assert importance_of(SPACE, trials(7)) == []
    same = [Trial(number, {"rate": "0.01"}, COMPLETED, value=1.0) for number in range(1, 20)]
    assert {part for _, part in importance_of(SPACE, same)} == {0.0}


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_a_page_is_whole_and_escapes_what_is_not_ours(count: int) -> None:
    held = trials(count)
    held += [Trial(count + 1, {"rate": "0.01", "kind": "x"}, FAILED, reason="<script>alert(1)</script>")]
    held += [Trial(count + 2, {"rate": "0.02"}, STOPPED, value=-5.0), Trial(count + 3, {"rate": "0.02"})]
    view = TuningStatus(TuningJob("t", Job("t"), SPACE, Objective("<loss>")), tuple(held), {})
    made = page(view, "Completed", "over", 100.0)

    assert "<script>alert" not in made and "<b></" not in made and "&lt;loss&gt;" in made
    assert "default-src 'none'" in made
    drawn = [json.loads(part.partition("</script>")[0]) for part in made.split('<script type="application/json">')[1:]]
    kinds = [one["kind"] for one in drawn]
    assert kinds == ["points"] + ["ranked"] * (count == 40) + ["parallel"] * (count > 0)
    assert len(drawn[0]["points"]) == len(drawn[0]["line"]) == count + 1
    assert ("Importance" in made) is (count == 40)
