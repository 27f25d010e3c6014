"""Runs public example scripts as jobs, and says whether they end as they should (amazon_scripts.py, horovod_scripts.py)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_job(
    home: Path, job: Mapping[str, object], stand_ins: Path, environment: Mapping[str, str], image: str = ""
) -> tuple[int, str]:
    """Exit status and log of a job, on CPUs, each process with one thread.

    Args:
        home: a folder for the job's file and its output (`out`).
        job: the file's fields, without `name` and `environment`.
        stand_ins: a folder of modules that the script imports, and that are not installed.
        environment: what the script finds in it besides.
        image: each host is a container of it; else a process.
    """
    environ = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment}
    if image:
        shutil.copytree(stand_ins, str(job["source_dir"]), dirs_exist_ok=True)
        job = {**job, "image": image}
    else:
        environ["PYTHONPATH"] = f"{stand_ins}{os.pathsep}{ROOT / 'toolkit'}"
    (home / "job.yaml").write_text(json.dumps({"name": "example", **job, "environment": environ}))
    done = subprocess.run(
        [sys.executable, "-m", "trainshed.cli", "run", str(home / "job.yaml"), "--output", str(home / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "toolkit")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def outcome(status: int, log: str, numbers: Sequence[str], refused: str, says: str = "") -> tuple[bool, str]:
    """Whether a job ended as it should, and how it did, for a person.

    Args:
        numbers: what the script has printed of its progress; a good run prints several.
        refused: what the error has to say, where the script cannot run; "" where it can.
        says: what the log of a good run has to hold.
    """
    if refused:
        good = status != 0 and refused in log
        return good, f"refused: {refused}" if good else f"status {status}"
    good = status == 0 and len(numbers) > 1 and says in log
    return good, f"{numbers[0]} -> {numbers[-1]}" if good else f"status {status}"
