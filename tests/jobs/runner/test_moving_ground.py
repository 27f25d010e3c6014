"""Code folders that change while they are copied: a home folder with all that programs do in it."""

from __future__ import annotations

import json
import os
import threading

import pytest

from support.runner_project import LIMIT, Project

AT_ONCE = 6


@pytest.fixture
def home(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project is the user's home folder: the runs and the index of runs are in it."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(project.folder))
    return project.write({"train.py": "print('ran')", ".ssh/id_rsa": "private", "lib/part.py": ""})


def test_many_jobs_at_once_from_the_home_folder_all_run(home: Project) -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            for number in range(50):
                (home.folder / f"lib/lock{number}").write_text("")
            for number in range(50):
                (home.folder / f"lib/lock{number}").unlink()

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        started = [home.start("run", "train.py", "--instances", "2") for _ in range(AT_ONCE)]
        ends = [(process.communicate(timeout=LIMIT), process.returncode) for process in started]
    finally:
        over.set()
        worker.join()
    assert [code for _, code in ends] == [0] * AT_ONCE, ends
    for run in (home.folder / "runs").iterdir():
        assert json.loads((run / "status.json").read_text())["TrainingJobStatus"] == "Completed"
        copied = {name for name in os.listdir(run / "algo-2/code")}
        assert copied == {"train.py", "lib"}, "neither runs, nor state, nor keys"
