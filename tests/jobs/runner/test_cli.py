"""The `trainshed` command as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trainshed
from support.runner_project import TOOLKIT, Project
from trainshed.cli import COMMANDS, help_text

SLOW = ("torch", "yaml", "docker", "boto3", "numpy", "psutil", "dataclasses", "asyncio")
LOADED = "import sys, trainshed.cli as cli; code = cli.main({arguments!r}); print([n for n in {slow!r} if n in sys.modules])"


def loaded(arguments: list[str], slow: tuple[str, ...]) -> str:
    """The last line printed by a command after which the modules are looked at: those of `slow` that it has loaded."""
    script = LOADED.format(arguments=arguments, slow=slow)
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": TOOLKIT}, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_loads_nothing_that_is_slow(arguments: list[str]) -> None:
    # argparse ends a program that was asked for help; the wrapper sees that as any other end.
    script = (
        "import sys, trainshed.cli as cli\n"
        "try:\n    cli.main(" + repr(arguments) + ")\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {SLOW[:6]!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": TOOLKIT}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_short_answers_load_less_still() -> None:
    assert loaded(["--help"], SLOW) == "[]"
    assert loaded(["--version"], SLOW) == "[]"


def test_running_a_job_never_loads_torch(project: Project) -> None:
    project.write({"train.py": ""})
    script = (
        "import sys, trainshed.cli as cli; cli.main(['run', 'train.py', '--dry-run'])\n"
        "print([name for name in ('torch', 'numpy', 'docker') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env={"PYTHONPATH": TOOLKIT},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_is_in_the_help() -> None:
    lines = help_text().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")][: len(COMMANDS)] == list(COMMANDS)
    assert max(map(len, lines)) <= 80


def test_the_version_is_printed(project: Project) -> None:
    assert project.trainshed("--version").stdout == f"trainshed {trainshed.__version__}\n"


def test_an_unknown_command_is_answered_with_the_nearest(project: Project) -> None:
    done = project.trainshed("rnu")
    assert done.status == 2
    assert done.stderr == "trainshed: there is no command 'rnu': did you mean 'run'?; see `trainshed --help`\n"


def test_train_is_reached_as_a_command_of_its_own(project: Project) -> None:
    assert "usage: train" in project.trainshed("train", "--help").stdout
    done = project.trainshed("train", "--dry-rn")
    assert done.status == 2
    assert "did you mean '--dry-run'?" in done.stderr


def test_a_defect_of_ours_is_one_line_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainshed import cli

    def broken(_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr("trainshed.cli.run.run", broken)
    monkeypatch.delenv("TRAINSHED_LOG_LEVEL", raising=False)
    assert cli.main(["run"]) == 70
    error = capsys.readouterr().err
    assert "trainshed itself failed: KeyError: 'x' (test_cli.py:" in error
    assert "Traceback" not in error
    monkeypatch.setenv("TRAINSHED_LOG_LEVEL", "debug")
    with pytest.raises(KeyError):
        cli.main(["run"])


def test_all_problems_of_a_job_file_are_printed(project: Project) -> None:
    project.write({"job.yaml": "instances: 0\nargv: x\n"})
    done = project.trainshed("run", "job.yaml")
    assert done.status == 2
    assert "3 problems in the job" in done.stderr
    for part in ("job.yaml: program: is missing", "job.yaml:1: instances = 0", "job.yaml:2: argv = x"):
        assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["doctor", "--help"], ["rnu"]])
def test_python_m_trainshed_is_the_command(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "trainshed", *arguments]
    as_module = subprocess.run(command, env={"PYTHONPATH": TOOLKIT}, capture_output=True, text=True, timeout=60)
    script = f"import sys, trainshed.cli as cli; sys.exit(cli.main({arguments!r}))"
    as_command = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": TOOLKIT}, capture_output=True, text=True, timeout=60
    )
    assert (as_module.returncode, as_module.stdout, as_module.stderr) == (
        as_command.returncode,
        as_command.stdout,
        as_command.stderr,
    )
    assert as_module.stdout or as_module.stderr
