"""A stop signal that meets the shell half of the command `train`, as process 1, ends the job with a failure file."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from support.paths import TOOLKIT

pytestmark = pytest.mark.safety

ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# The first program that the shell starts: it waits until the signal has been sent.
SLOW_ENV = """#!/bin/sh
if [ ! -e {folder}/go ]; then
    : >{folder}/met
    while [ ! -e {folder}/go ]; do sleep 0.02; done
fi
{rest}
"""
CAN_BLOCK, CANNOT_BLOCK = 'exec /usr/bin/env "$@"', 'case $1 in --*) exit 125 ;; esac\nexec /usr/bin/env "$@"'


def until(done: Any) -> None:
    deadline = time.monotonic() + 100
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """The command in a virtual environment that sees this checkout."""
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "trainshed.pth").write_text(f"{TOOLKIT}\n")
    shutil.copy(TOOLKIT / "train", folder / "bin/train")
    return folder / "bin/train"


@pytest.mark.parametrize("env", [CAN_BLOCK, CANNOT_BLOCK], ids=["env that blocks", "env that does not"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_that_comes_before_python_runs_leaves_a_failure_file_with_its_status(
    command: Path, job_tree: Any, tmp_path: Path, number: signal.Signals, env: str
) -> None:
    job_tree.code("train.sh", "echo trained\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "env").write_text(SLOW_ENV.format(folder=tmp_path, rest=env))
    (programs / "env").chmod(0o755)
    variables = {**job_tree.environ(), "PATH": f"{programs}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    variables.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [*ALONE, str(command)], env=variables, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until((tmp_path / "met").exists)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        subprocess.run(["kill", "-s", number.name[3:], children[0]], check=True)
        (tmp_path / "go").touch()
        printed, _ = process.communicate(timeout=100)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 128 + number, printed
    failure = (job_tree.base / "output/failure").read_text()
    assert failure.startswith(f"Interrupted: stopped by {number.name} before the script was started"), failure
    assert "trained" not in printed
