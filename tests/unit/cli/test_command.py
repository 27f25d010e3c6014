"""The `trainshed` command as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trainshed
from support.runner_project import Project
from trainshed import cli
from trainshed.cli import COMMANDS, help_text


def test_every_command_is_in_the_help() -> None:
    lines = help_text().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")][: len(COMMANDS)] == list(COMMANDS)
    assert max(map(len, lines)) <= 80


def test_the_version_is_printed(project: Project) -> None:
    assert project.command("--version").stdout == f"trainshed {trainshed.__version__}\n"


def test_an_unknown_command_is_answered_with_the_nearest(project: Project) -> None:
    done = project.command("rnu")
    assert done.status == 2
    assert done.stderr == "trainshed: there is no command 'rnu': did you mean 'run'?; see `trainshed --help`\n"


def test_train_is_reached_as_a_command_of_its_own(project: Project) -> None:
    assert "usage: train" in project.command("train", "--help").stdout
    done = project.command("train", "--dry-rn")
    assert done.status == 2
    assert "did you mean '--dry-run'?" in done.stderr


def test_a_defect_of_ours_is_one_line_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr("trainshed.cli.run.run", broken)
    monkeypatch.delenv("TRAINSHED_LOG_LEVEL", raising=False)
    assert cli.main(["run"]) == 70
    error = capsys.readouterr().err
    assert "trainshed itself failed: KeyError: 'x' (test_command.py:" in error
    assert "Traceback" not in error
    monkeypatch.setenv("TRAINSHED_LOG_LEVEL", "debug")
    with pytest.raises(KeyError):
        cli.main(["run"])


def test_all_problems_of_a_job_file_are_printed(project: Project) -> None:
    project.write({"job.yaml": "instances: 0\nargv: x\n"})
    done = project.command("run", "job.yaml")
    assert done.status == 2
    assert "3 problems in the job" in done.stderr
    for part in ("job.yaml: program: is missing", "job.yaml:1: instances = 0", "job.yaml:2: argv = x"):
        assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_is_not_installed_is_no_defect() -> None:
    code = "import sys; sys.modules['torch'] = None; from trainshed.cli import main; sys.exit(main(['plan', 'train.py']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, "defect" in done.stderr) == (1, False), done.stderr
    assert "`trainshed plan` needs the module torch" in done.stderr
