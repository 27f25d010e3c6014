"""Jobs for the compiler's tests: `train` on a folder of its own, with a folder for temporary files that tests may share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.compiler.scripts import losses_of
from support.notice_jobs import TOOLKIT, free_port

LIMIT = 900.0  # seconds; cold compilation takes tens of them on a busy machine


@dataclass
class Job:
    """A job that is over."""

    folder: Path
    status: int
    output: str

    @property
    def losses(self) -> dict[int, list[float]]:
        """Rank -> its losses."""
        return {rank: value["losses"] for rank, value in losses_of(self.output).items()}

    @property
    def names(self) -> dict[int, list[str]]:
        """Rank -> the names in its model's state."""
        return {rank: value["names"] for rank, value in losses_of(self.output).items()}

    @property
    def record(self) -> dict[str, Any]:
        """The run record."""
        (path,) = (self.folder / "output/data/run").iterdir()
        return json.loads(path.read_text())

    def report(self, rank: int = 0) -> dict[str, Any]:
        """What a rank's compiler reported."""
        return self.record["compiler"]["ranks"][str(rank)]


def run(
    folder: Path,
    script: str,
    tmp: Path,
    *,
    ranks: int = 0,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
    program: str = "train.py",
    **hyperparameters: Any,
) -> Job:
    """Runs a script as a job.

    Args:
        tmp: TMPDIR, where the live compile cache is.
        ranks: processes of torchrun's launcher, 0 for a plain script.
        hyperparameters: by name; those that begin with `trainshed_` and `sagemaker_` are for `train`.
    """
    for name in ("code", "input/config", "checkpoints"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    tmp.mkdir(parents=True, exist_ok=True)
    if script:
        (folder / "code/train.py").write_text(script)
    asked = {"sagemaker_program": program, **{name: str(value) for name, value in hyperparameters.items()}}
    if ranks:
        asked = {
            "trainshed_distribution": "torchrun",
            "trainshed_processes_per_host": str(ranks),
            "trainshed_master_port": str(free_port()),
            **asked,
        }
    (folder / "input/config/hyperparameters.json").write_text(json.dumps(asked))
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp),
        "TMPDIR": str(tmp),
        "PYTHONPATH": str(TOOLKIT),
        "SAGEMAKER_BASE_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        **(env or {}),
    }
    done = subprocess.run(
        [python, "-m", "trainshed.container.main"],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    return Job(folder, done.returncode, done.stdout)
