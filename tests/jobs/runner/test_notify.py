"""A run tells people how it stands; whatever becomes of that, the run goes on."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import Project, project, wait_until

__all__ = ["project"]


def told(path: Path) -> list[dict[str, Any]]:
    """The notices that a command has written, by their events."""
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((json.loads(line) for line in lines), key=lambda one: str(one["event"]))


@pytest.mark.spine
def test_start_and_failure_are_told_and_a_receiver_that_never_answers_holds_nothing_up(
    project: Project, tmp_path: Path
) -> None:
    out = tmp_path / "told"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        ways = {
            "file": {"kind": "command", "to": f"(cat; echo) >> {out}"},
            "broken": {"kind": "command", "to": "exit 7", "on": ["failure"]},
            "silent": {"to": f"http://127.0.0.1:{silent.getsockname()[1]}/"},
        }
        job = {"program": "train.py", "notify": ways, "environment": {"API_TOKEN": "tigerpass1"}}
        script = "from trainshed import metrics\nmetrics.log(loss=0.25)\nraise ValueError('no tigerpass1')\n"
        project.write({"train.py": script, "job.yaml": json.dumps(job)})
        done = project.trainshed("run", "job.yaml", "--name", "one")
        assert done.status == 1, done.output
        wait_until(lambda: len(told(out)) == 2, "both are told")

    failure, start = told(out)
    assert (start["event"], start["state"]) == ("start", "Training") and start["name"] == failure["name"] == project.run.name
    assert failure["title"] == f"{project.run.name}: has failed" and failure["metrics"] == "loss 0.25"
    assert "ValueError: no " in failure["reason"] and "tigerpass1" not in out.read_text()
    log = project.run / "runner.log"
    wait_until(lambda: "the notice of 'failure' to broken (command) was not sent" in log.read_text(), "what failed is said")
    assert json.loads((project.run / "job.json").read_text())["job"]["notify"][0]["name"] == "file"
