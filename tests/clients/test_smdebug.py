"""The samples of a machine, read by Amazon's own reader of the profiler's files."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients import venvs
from trainshed.observe.system import FOLDER, file_of, read_system

PROBE = Path(__file__).resolve().parent / "smdebug_probe.py"


@pytest.fixture(scope="module")
def python() -> Path:
    """smdebug's Python."""
    try:
        return venvs.make("smdebug")
    except venvs.VenvError as error:
        pytest.skip(f"pip cannot install smdebug here: {error}")


def test_amazons_reader_finds_the_same_samples_as_ours(job_tree: Any, python: Path) -> None:
    job_tree.code("train.sh", 'while [ -z "$(find "$SM_OUTPUT_DIR/profiler" -size +8k)" ]; do sleep 0.1; done\n')
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh", "trainshed_system_metrics": "0.1"})
    done = job_tree.train()
    assert done.status == 0, done.output
    folder = str(job_tree.base / "output/profiler")
    other = Path(folder, FOLDER, file_of(1790000040, 2))  # of a second host, cut off in the middle of its last line
    other.parent.mkdir(parents=True, exist_ok=True)
    (newest,) = sorted(Path(folder, FOLDER).rglob("*.algo-1.json"))[-1:]
    other.write_text(newest.read_text().replace('"algo-1"', '"second"')[:-9])

    probe = subprocess.run(
        [python, PROBE, folder], env=os.environ | {"PYTHONWARNINGS": "ignore"}, capture_output=True, text=True
    )
    assert probe.returncode == 0, probe.stderr
    (line,) = [line for line in probe.stdout.splitlines() if line.startswith("EVENTS")]
    events = {tuple(event) for event in json.loads(line.removeprefix("EVENTS"))}
    ours = {(*key, time, value) for key, points in read_system(folder).items() for time, value in points}

    assert events == ours
    assert {event[0] for event in events} == {"algo-1", "second"}
