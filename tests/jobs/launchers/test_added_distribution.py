"""A package that is installed beside trainshed adds a distribution, for `trainshed run` and for `train`."""

from __future__ import annotations

from typing import Any

import pytest

from support.plugins import search_path

SHOW = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'here', flush=True)\n"


@pytest.fixture(scope="module", name="search_path")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with the example package."""
    return search_path("distribution", tmp_path_factory.mktemp("plugin"))


@pytest.mark.spine
def test_a_job_file_names_it(project: Any, search_path: str) -> None:
    project.write({"train.py": SHOW})
    project.write({"job.yaml": "program: train.py\ndistribution: {kind: local_pool, processes_per_host: 2}\n"})

    done = project.trainshed("run", "job.yaml", PYTHONPATH=search_path)

    assert done.status == 0, done.output
    assert '"local_pool"' in project.trainshed("schema", PYTHONPATH=search_path).stdout
    assert sorted(line.partition("] ")[2] for line in done.output.splitlines() if line.endswith("here")) == [
        "rank 0 of 2 here",
        "rank 1 of 2 here",
    ]


def test_a_hyperparameter_names_it(job_tree: Any, search_path: str) -> None:
    job_tree.code("train.py", SHOW)
    job_tree.configure(
        hyperparameters={
            "sagemaker_program": "train.py",
            "trainshed_distribution": "local_pool",
            "trainshed_processes_per_host": "2",
        }
    )

    done = job_tree.train(PYTHONPATH=search_path)

    assert done.status == 0 and job_tree.success == "", done.output
    assert done.output.count("of 2 here") == 2
    shown = job_tree.train("--dry-run", PYTHONPATH=search_path).output
    assert "local_pool, asked for by trainshed_distribution; 2 rank(s)" in shown


def test_without_the_package_the_name_is_refused_with_those_that_are_known(job_tree: Any, project: Any) -> None:
    known = "must be one of script, torchrun,", "ray, or one that an installed package adds"
    job_tree.code("train.py", SHOW)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py", "trainshed_distribution": "local_pool"})
    project.write({"train.py": SHOW, "job.yaml": "program: train.py\ndistribution: torchrn\n"})
    ended, refused = job_tree.train(), project.command("run", "job.yaml")

    assert ended.status == 2 and all(words in ended.output for words in known), ended.output
    assert refused.status == 2 and known[0] in refused.output, refused.output
    assert "or one that an installed package adds (did you mean 'torchrun'?)" in refused.output
