"""Every command that prints a table prints it as JSON, too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.command_line import parser_of
from support.offenders import check_each
from support.runner_project import Project

TABLES = {
    "algorithms", "cache ls", "check-image", "checkpoints", "compare", "data bench", "data show", "describe", "diff",
    "doctor", "goodput", "lineage", "ls", "metrics show", "metrics test", "models ls", "models show", "profile", "ps",
    "show", "status", "steps show", "steps status", "tune",
}  # fmt: skip
STEPS = "steps:\n  first: {run: {program: train.py}}\n  second: {after: [first], run: {program: train.py}}\n"


def test_every_table_is_there_as_json() -> None:
    def check(words: str) -> None:
        command, *rest = words.split()
        parser: Any = parser_of(command)
        for word in rest:
            parser = next(action.choices for action in parser._actions if isinstance(action.choices, dict))[word]
        assert "--json" in {flag for action in parser._actions for flag in action.option_strings}

    check_each(sorted(TABLES), check)


def read(project: Project, *words: str) -> Any:
    """What a command prints as JSON."""
    done = project.command(*words, "--json")
    assert done.status == 0, done.stderr
    return json.loads(done.stdout)


def test_nothing_is_json_as_well(project: Project) -> None:
    assert read(project, "ps") == {"runs": [], "pools": []}
    assert read(project, "runs", "ls") == []
    assert read(project, "cache", "ls")["addresses"] == []
    (project.folder / "empty").mkdir()
    assert read(project, "checkpoints", "list", "empty") == []


def test_metrics_of_a_log_are_rows(project: Project) -> None:
    project.write({"log": "loss=0.5\nloss=0.75\nloss=0.25\n"})
    (row,) = read(project, "metrics", "test", "log", "--format", "off", "--regex", r"loss=loss=(\S+)")
    assert {"metric", "values", "first", "last", "least", "most"} == row.keys()
    assert (row["metric"], row["first"], row["last"], row["most"]) == ("loss", 0.5, 0.25, 0.75)


def test_a_channel_is_an_object(project: Project) -> None:
    pytest.importorskip("numpy")
    project.write({"data/rows.csv": "a,b\n1,2\n3,4\n"})
    found = read(project, "data", "show", "data")
    assert (found["format"], found["samples"], len(found["files"])) == ("csv", 2, 1)


def test_the_steps_of_a_pipeline_are_rows(project: Project) -> None:
    project.write({"train.py": "", "steps.yaml": STEPS})
    found = read(project, "steps", "show", "steps.yaml")
    assert [(one["name"], one["needs"]) for one in found["steps"]] == [("first", []), ("second", ["first"])]


def test_a_checkpoint_that_is_not_whole_says_why(project: Project) -> None:
    (project.folder / "all/step-000000000007").mkdir(parents=True)
    (row,) = read(project, "checkpoints", "list", "all")
    assert (row["step"], row["whole"], row["verified"]) == (7, False, False)
    assert row["problem"]
