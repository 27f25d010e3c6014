"""The `trainshed` command as a whole."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

import trainshed
from support.command_line import parser_of
from support.offenders import check_each
from support.runner_project import Project
from trainshed import cli
from trainshed.cli import FAMILIES, RUNS, SCREEN
from trainshed.cli.commands import all_commands
from trainshed.studio.commands.tune import VERBS


def test_the_first_screen_has_fourteen_commands_and_the_families_on_24_lines(project: Project) -> None:
    text = project.command("--help").stdout
    lines = text.splitlines()
    assert len(lines) < 24 and max(map(len, lines)) <= 80  # one is left for the prompt
    assert sum(map(len, SCREEN.values())) == 14 and len(SCREEN) == 4
    words = [word for line in lines[2:] for word in line.removeprefix("look after").split()]
    for name in [*sum(SCREEN.values(), ()), *FAMILIES]:
        assert name in words
    assert project.command().stdout == project.command("help").stdout == text


def test_every_command_is_in_the_full_help(project: Project) -> None:
    lines = project.command("help", "--all").stdout.splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    assert set(all_commands()) <= listed
    assert max(map(len, lines)) <= 80


def test_help_of_a_command_is_its_help(project: Project) -> None:
    asked = project.command("help", "runs", "ls").stdout
    assert asked.startswith("usage: trainshed runs ls ")
    assert asked == project.command("runs", "ls", "--help").stdout


def test_the_first_screen_names_the_commands_of_each_family() -> None:
    def check(family: str) -> None:
        known = set(RUNS) if family == "runs" else set(verbs_of(parser_of(family)))
        named = set(FAMILIES[family].split("|")) - {"TUNE.yaml"}
        assert named == known

    check_each([family for family in FAMILIES if family != "tune"], check)
    assert FAMILIES["tune"] == "TUNE.yaml|" + "|".join(VERBS)


def verbs_of(parser: argparse.ArgumentParser) -> list[str]:
    """The words of which the first argument of a command is one."""
    return next(
        list(action.choices) for action in parser._actions if action.choices is not None and not action.option_strings
    )


def test_a_command_about_runs_is_the_same_with_and_without_the_family(project: Project) -> None:
    def check(name: str) -> None:
        short, long = (project.command(*words, name, "--help") for words in ((), ("runs",)))
        assert (short.status, long.status) == (0, 0)
        assert long.stdout.startswith(f"usage: trainshed runs {name} ")
        assert "".join(long.stdout.replace(f"trainshed runs {name}", f"trainshed {name}").split()) == "".join(
            short.stdout.split()
        )

    check_each(RUNS, check)
    done = project.command("runs", "ls", "--colour")
    assert done.stderr == (
        "trainshed runs ls: does not take '--colour' (did you mean '--columns'?); see `trainshed runs ls --help`\n"
    )
    assert "'sl' must be one of ls, show" in project.command("runs", "sl").stderr


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
