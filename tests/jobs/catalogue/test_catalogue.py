"""The catalogue over runs that really ran: found by what they measured, told apart, and found again elsewhere."""

from __future__ import annotations

import json
import shutil

import pytest

from support.runner_project import Project, project

__all__ = ["project"]

SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--api_key", default="")
given = parser.parse_args()
for step in range(1, 4):
    print(f"step={step} loss={given.lr / step:.4f}")
if given.lr > 1:
    raise ValueError("the loss grows")
"""


@pytest.mark.spine
def test_runs_are_found_labelled_compared_and_found_again(project: Project) -> None:
    project.write({"train.py": SCRIPT})
    for name, lr in (("low", "0.3"), ("high", "3")):
        words = ["--name", name, "--hp", f"lr={lr}", "--hp", "api_key=tigerpass1", "--tag", "team=x"]
        done = project.trainshed("run", "train.py", *words)
        assert done.status == (0 if name == "low" else 1), done.output
        project.write({"train.py": SCRIPT + "# another\n"})

    listed = json.loads(
        project.trainshed("ls", "--where", "loss < 1 or state = 'Failed'", "--sort", "-loss", "--json").stdout
    )
    assert [row["name"].partition("-")[0] for row in listed] == ["high", "low"]
    high, low = listed
    assert (low["metrics"]["loss"]["min"], low["hyperparameters"]["lr"], low["state"]) == (0.1, 0.3, "Completed")
    assert "ValueError: the loss grows" in high["cause"] and high["tags"] == {"team": "x"}

    assert project.trainshed("tag", "low", "+best", "-team").stdout == f"{low['name']}: best\n"
    project.trainshed("note", "low", "for the talk")
    found = project.trainshed("ls", "--where", '"best" in tags and note ~ "talk"', "--columns", "name", "--csv").stdout
    assert found == f"name\n{low['name']}\n"

    shown = project.trainshed("show", "low").stdout
    assert "for the talk" in shown and "0.3" in shown and "tigerpass1" not in shown
    told = json.loads(project.trainshed("diff", "low", "high", "--json").stdout)
    assert told["differs"]["hyperparameters"] == {"lr": [0.3, 3.0]} and list(told["differs"]["code"]) == ["train.py"]
    assert "+# another" in told["code_diff"] and told["unknown"] == {
        "hyperparameters": "api_key is a secret, which is not kept"
    }
    assert {"packages", "machine", "data", "image"} <= {*told["equal"]}

    elsewhere = project.folder / "kept"
    elsewhere.mkdir()
    shutil.move(low["folder"], elsewhere)
    shutil.rmtree(project.folder / "runs")
    gone = project.trainshed("ls", "--json")
    back = project.trainshed("ls", "--json", "--runs", str(elsewhere))
    assert json.loads(gone.stdout) == [] and "2 runs are not where they were" in gone.stderr
    assert [row["tags"] for row in json.loads(back.stdout)] == [{"best": ""}]
    assert project.trainshed("show", "low").status == 0, "all commands know the new place"
    assert json.loads(project.trainshed("ls", "--json").stdout)[0]["folder"].startswith(str(elsewhere))
