"""The `train` command's own arguments."""

from __future__ import annotations

from typing import Any

import pytest

import trainshed


@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_train_runs_whether_or_not_an_entrypoint_hands_it_its_own_name(arguments: list[str], job_tree: Any) -> None:
    """`ENTRYPOINT ["train"]`: the platform and the SDKs add the argument `train`."""
    job_tree.configure(hyperparameters={"epochs": "3"})
    job_tree.code("train.py", "import sys; print(sys.argv[1:])")

    done = job_tree.train(*arguments)

    assert (done.status, done.stdout) == (0, "['--epochs', '3']\n"), done.output


def test_all_problems_of_a_job_are_on_the_console(job_tree: Any) -> None:
    wrong = {f"trainshed_{name}": "x" for name in ("grace_seconds", "bind", "metrics")}
    job_tree.configure(hyperparameters=wrong)
    job_tree.code("train.py")

    done = job_tree.train()

    assert done.status == 2
    assert [name for name in wrong if f". {job_tree.base}/input/config/hyperparameters.json: {name} = x" in done.stderr] == [
        *wrong
    ]

    job_tree.configure(hyperparameters={f"trainshed_no_such_{number}": "x" for number in range(60)})
    told = job_tree.train().stderr
    assert len(told.splitlines()) < 60 and "and 10 more: mend these, and look again" in told


def test_options_follow_the_name(job_tree: Any) -> None:
    assert job_tree.train("train", "--version").stdout == f"trainshed {trainshed.__version__}\n"


@pytest.mark.parametrize("arguments", [["tarin"], ["train", "train"], ["--dryrun"]])
def test_any_other_argument_is_refused(arguments: list[str], job_tree: Any) -> None:
    done = job_tree.train(*arguments)

    assert done.status == 2 and f"train does not take {arguments[-1]!r}" in done.stderr
