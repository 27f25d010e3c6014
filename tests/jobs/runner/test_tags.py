"""`tags` of a job stay with its run: the example of how a field is added to the table of fields."""

from __future__ import annotations

import json

import pytest

from support.runner_project import Project

JOB = "program: train.py\noutput: run\ntags: {team: ada, TOKEN: hunter22}\n"


@pytest.mark.spine
def test_tags_are_kept_shown_and_cloned(project: Project) -> None:
    project.write({"train.py": "", "job.yaml": JOB})
    assert project.trainshed("run", "job.yaml", "--tag", "note=a b").status == 0
    status = project.command("status", "./run").stdout

    assert "  tags       team=ada, TOKEN=******, note=a b\n" in status
    recorded = json.loads((project.folder / "run/job.json").read_text())["job"]["tags"]
    assert recorded == {"team": "ada", "TOKEN": "******", "note": "a b"}
    assert '\n  "team": "ada"\n' in project.command("clone", "./run").stdout


def test_tags_may_be_the_platforms_list(project: Project) -> None:
    project.write({"train.py": "", "job.yaml": "program: train.py\ntags: [{Key: team}]\n"})

    assert "job.yaml:2: tags: must have Key and Value" in project.command("run", "job.yaml").stderr
