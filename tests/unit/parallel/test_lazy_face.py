"""`import trainshed.parallel` and `trainshed plan --help` do not wait for torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.paths import TOOLKIT

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
{statement}
"""


def run(statement: str) -> subprocess.CompletedProcess[str]:
    """Runs a statement in an interpreter in which torch cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_TORCH.format(statement=statement)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(TOOLKIT)}, capture_output=True, text=True)


@pytest.mark.parametrize("package", ["trainshed.parallel", "trainshed.parallel.plan", "trainshed.parallel.plan.arguments"])
def test_importing_the_package_does_not_import_torch(package: str) -> None:
    done = run(f"import {package}")

    assert done.returncode == 0, done.stderr


def test_the_help_of_the_plan_command_does_not_import_torch() -> None:
    done = run("from trainshed.cli import main; main(['plan', '--help'])")

    assert done.returncode == 0, done.stderr
    assert "usage: trainshed plan" in done.stdout


@pytest.mark.torch
def test_every_name_of_the_face_is_there_and_stays_itself() -> None:
    pytest.importorskip("torch")
    import trainshed.parallel as pipe

    first = {name: getattr(pipe, name) for name in pipe.__all__}

    assert {name: getattr(pipe, name) for name in pipe.__all__} == first  # a module of the same name would hide one
    assert all(callable(value) for value in first.values())
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        pipe.nothing  # noqa: B018
