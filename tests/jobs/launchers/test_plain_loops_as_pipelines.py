"""Scripts that never begin the pipeline that their job asks for."""

from __future__ import annotations

from typing import Any

import pytest

PLAIN = "print('a loop of its own')\n"
BEGINS = """\
import trainshed.parallel as pipe
pipe.init({"pipeline_parallel_degree": 2, "microbatches": 2})
"""


def train(job: Any, script: str, ranks: int) -> Any:
    job.code("train.py", script)
    names = {"trainshed_distribution": "pipeline", "trainshed_processes_per_host": str(ranks)}
    job.configure(hyperparameters={"sagemaker_program": "train.py", **names})
    return job.train()


def test_two_ranks_of_a_plain_loop_are_a_failure_that_says_what_to_do(job_tree: Any) -> None:
    done = train(job_tree, PLAIN, 2)

    assert done.status == 1, done.output
    told = (job_tree.base / "output/failure").read_text()
    assert "the script never began one" in told and "pipe.init()" in told and "distribution: torchrun" in told


def test_one_rank_of_it_is_one_training(job_tree: Any) -> None:
    assert train(job_tree, PLAIN, 1).status == 0


@pytest.mark.torch
def test_ranks_that_begin_one_are_no_failure(job_tree: Any) -> None:
    done = train(job_tree, BEGINS, 2)
    assert done.status == 0, done.output
