"""Completion: what may come next, and the shells' own scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.offenders import check_each
from support.paths import TOOLKIT
from support.runner_project import Project
from trainshed.cli.completion import SHELLS

NEXT = {
    "ru": ["run", "runs"],
    "completion ": ["bash", "fish", "words", "zsh"],
    "runs d": ["diff"],
    "runs ls --co": ["--columns"],
    "ls --co": ["--columns"],
    "run --on s": ["slurm", "ssh"],
    "run --output ": [],
    "steps st": ["status", "stop"],
    "steps status --j": ["--json"],
    "checkpoints v": ["verify"],
    "logs ": ["digits-1", "digits-2"],
    "runs diff digits-1 ": ["digits-1", "digits-2"],
    "nothing ": [],
    "train ": [],
}


@pytest.fixture
def with_runs(project: Project) -> Project:
    for name in ("digits-1", "digits-2"):
        (project.folder / "runs" / name).mkdir(parents=True)
    return project


def test_the_words_that_may_come_next_are_known(with_runs: Project) -> None:
    def check(line: str) -> None:
        done = with_runs.command("completion", "words", *line.split(" "))
        assert (done.status, sorted(done.stdout.split())) == (0, NEXT[line])

    check_each(NEXT, check)


def test_bash_completes_a_line(with_runs: Project, tmp_path: Path) -> None:
    program = tmp_path / "trainshed"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={TOOLKIT} exec {sys.executable} -m trainshed "$@"\n')
    program.chmod(0o755)
    script = f"""\
PATH={tmp_path}:$PATH; eval "$(trainshed completion bash)"
COMP_WORDS=(trainshed runs show ""); COMP_CWORD=3; _trainshed; printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p trainshed
"""
    done = subprocess.run(["bash", "-c", script], cwd=with_runs.folder, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["digits-1", "digits-2", "complete -o default -F _trainshed trainshed"], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_reads_its_script(shell: str, project: Project) -> None:
    script = project.command("completion", shell).stdout
    assert "trainshed completion words" in script
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
