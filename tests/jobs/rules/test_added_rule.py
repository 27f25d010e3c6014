"""A package adds a rule: `examples/plugins/rule`, installed as a user installs it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.plugins import search_path

LOSSES = "from trainshed import metrics\nfor step in range(10):\n    metrics.log(loss=step, step=step)\n"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a command for which the example's package is installed."""
    return {"PYTHONPATH": search_path("rule", tmp_path_factory.mktemp("rule"))}


def train(job_tree: Any, there: dict[str, str], rules: object) -> Any:
    job_tree.code("train.py", LOSSES)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py", "trainshed_rules": json.dumps(rules)})
    return job_tree.train(**there)


def test_a_job_names_it_with_its_parameters(job_tree: Any, there: dict[str, str]) -> None:
    done = train(job_tree, there, [{"rule": "LossAbove", "limit": 5}])

    assert done.status == 0, done.output
    assert "warning: rule LossAbove: loss is 6, above 5" in done.output


@pytest.mark.parametrize(
    "rule, words",
    [
        ({"rule": "LossAbove", "limits": 5}, "LossAbove has no parameter 'limits'; its parameters are: limit, patience"),
        ({"rule": "LossAbov"}, "'LossAbov' is not a rule; did you mean 'LossAbove'?"),
    ],
)
def test_what_is_wrong_with_it_ends_the_job_before_it_starts(
    job_tree: Any, there: dict[str, str], rule: object, words: str
) -> None:
    done = train(job_tree, there, [rule])

    assert done.status == 2 and words in done.output, done.output
