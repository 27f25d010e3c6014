"""The `trainshed` command as a process: what it loads, and how it is started."""

from __future__ import annotations

import json
import subprocess
import sys

from support.command_line import answer
from support.paths import TOOLKIT
from support.runner_project import Project
from trainshed.cli.commands import all_commands

SHORT = [[], ["--help"], ["--version"]]
SLOW = ["torch", "yaml", "docker", "boto3", "numpy", "psutil"]
# Says on the last line which modules have been loaded after each command. argparse ends a program that was asked for help.
LOADED = """\
import contextlib, json, sys, trainshed.cli as cli
loaded = {}
for arguments, slow in json.loads(sys.argv[1]):
    with contextlib.suppress(SystemExit):
        cli.main(arguments)
    loaded[" ".join(arguments)] = [name for name in slow if name in sys.modules]
print(json.dumps(loaded))
"""


def python(*arguments: str, cwd: object = None) -> subprocess.CompletedProcess[str]:
    """A Python that has nothing but the toolkit."""
    command, environ = [sys.executable, *arguments], {"PYTHONPATH": str(TOOLKIT)}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300)  # type: ignore[call-overload]


def loaded(*commands: tuple[list[str], list[str]], cwd: object = None) -> dict[str, list[str]]:
    """Command line -> those of its modules that were loaded when it had ended, one command after the other."""
    done = python("-c", LOADED, json.dumps(commands), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_help_loads_nothing_that_is_slow_and_the_short_answers_load_less_still() -> None:
    short = [(arguments, [*SLOW, "dataclasses", "asyncio"]) for arguments in SHORT]
    found = loaded(*short, *(([name, "--help"], SLOW) for name in all_commands()))
    assert len(found) == 3 + len(all_commands()) and not any(found.values()), found


def test_running_a_job_never_loads_torch(project: Project) -> None:
    project.write({"train.py": ""})
    assert list(loaded((["run", "train.py", "--dry-run"], ["torch", "numpy", "docker"]), cwd=project.folder).values()) == [
        []
    ]


def test_python_m_trainshed_is_the_command(project: Project) -> None:
    for arguments in (["--version"], ["--help"], ["doctor", "--help"], ["rnu"]):
        done = python("-m", "trainshed", *arguments)
        here = answer(arguments, project.folder, {})
        assert (done.returncode, done.stdout, done.stderr) == (here.status, here.stdout, here.stderr)
        assert here.output
