"""`from trainshed import runner`: the names that it offers."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest

from trainshed import runner
from trainshed.base.errors import JobError


def test_a_public_name_is_not_the_name_of_a_room() -> None:
    # Importing a submodule sets it as the package's attribute: it would replace the function of its name.
    rooms = {module.name for module in pkgutil.iter_modules(runner.__path__)}

    assert rooms & set(runner.__all__) == set()


def test_the_names_that_are_loaded_late_are_shown_to_whoever_looks() -> None:
    assert set(runner.__all__) <= set(dir(runner))


def test_public_functions_stay_functions_when_rooms_are_imported() -> None:
    import trainshed.runner.control.execution
    import trainshed.runner.files.run  # noqa: F401

    for _ in range(2):
        assert callable(runner.run) and callable(runner.find) and callable(runner.runs) and callable(runner.make_job)


def test_a_word_is_a_job_file_or_a_program_as_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("train.py", "import sys\n\nprint(1)\n"), ("run.sh", "#!/bin/sh\n")):
        Path(name).write_text(text)
        assert runner.make_job(name).program == name
    Path("job.yaml").write_text("program: train.py\n")
    assert runner.make_job("job.yaml").program == "train.py"
    Path("nb.ipynb").write_text('{"cells": []}')
    for ask in (lambda: runner.make_job("nb.ipynb"), lambda: runner.make_job(program="nb.ipynb")):
        with pytest.raises(JobError, match=r"jupyter nbconvert --to script nb\.ipynb"):
            ask()
