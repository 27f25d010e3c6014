"""`make demo`'s job as a person runs it."""

from __future__ import annotations

import pytest

from support.paths import ROOT
from support.runner_project import Project


@pytest.mark.heavy
@pytest.mark.torch
def test_the_demo_job_fires_no_rule_and_ends_with_its_reports_path(project: Project) -> None:
    rules = ("--rules", "all", "--hp", "trainshed_tensor_steps=20")
    done = project.trainshed("run", str(ROOT / "entrypoints/digits.yaml"), *rules, OMP_NUM_THREADS="1")

    assert done.status == 0, done.output
    output = project.run / "algo-1/output"
    assert list((output / "tensors").iterdir()) and list(output.glob("rules/*")) == []
    assert done.output.rstrip().rpartition("\n")[2].split() == [
        "report",
        f"runs/{project.run.name}/algo-1/output/data/report.html",
    ]
