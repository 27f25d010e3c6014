"""`trainshed metrics show` after a run."""

from __future__ import annotations

import pytest

from support.runner_project import Project

SCRIPT = """\
for step in range(3):
    print({"loss": 1.5 - step, "epoch": step})
print("metric loss=nan step=9")
"""


@pytest.mark.spine
def test_a_runs_metrics_are_shown_with_all_their_values(project: Project) -> None:
    project.write({"train.py": SCRIPT})
    done = project.trainshed("run", "train.py")
    assert done.status == 0, done.output
    shown = project.command("metrics", "show")

    assert [line.split() for line in shown.stdout.splitlines()][1][:3] == ["loss", "4", "1.5"]
    rows = project.command("metrics", "show", "--csv").stdout.splitlines()
    assert rows[0] == "name,rank,step,epoch,time,value"
    assert [row.split(",")[-1] for row in rows[1:]] == ["1.5", "0.5", "-0.5", "NaN"]
    assert "loss 1.5 -> nan" in done.output
