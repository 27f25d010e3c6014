"""What a start of `train` loads for a plain job: the modules of modules_at_start.txt, and no slow one of Python's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

LISTED = Path(__file__).with_name("modules_at_start.txt")
# Each of these takes as long as many of ours. Without them `train` reads JSON, handles signals, hashes and masks.
SLOW = {
    *("re", "json", "json.decoder", "enum", "signal", "functools", "collections", "contextlib", "warnings", "sysconfig"),
    *("hashlib", "_hashlib", "typing", "dataclasses", "subprocess", "socket", "argparse", "logging", "tempfile", "shutil"),
    *("importlib.metadata", "inspect", "traceback", "threading", "random", "difflib", "zlib"),
}
# Without `site`: what it loads, such as editable installations, would hide what we load.
START = """
import os, sys
from trainshed.container.main import train
assert train(os.environ) == 0
print("LOADED", *sys.modules)
"""


def loaded(environ: dict[str, str]) -> set[str]:
    done = subprocess.run([sys.executable, "-S", "-c", START], env=environ, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert lines, done.stderr
    return set(lines[0].split()[1:])


def test_a_plain_job_loads_the_listed_modules_and_nothing_slow(job_tree: Any) -> None:
    job_tree.code("train.py", "print('ready')\n")
    job_tree.configure(
        hyperparameters={"sagemaker_program": "train.py", "epochs": "3", "learning-rate": "0.1"},
        resources=job_tree.hosts(1),
        channels={"train": {"TrainingInputMode": "File"}},
    )
    (job_tree.base / "input/data/train").mkdir(parents=True)
    names = loaded(job_tree.environ())
    ours = {name for name in names if name.partition(".")[0] == "trainshed"}

    assert names & SLOW == set()
    assert ours - set(LISTED.read_text().split()) == set(), "these are new at the start: load them where they are used"
    assert set(LISTED.read_text().split()) - ours == set(), "these are no longer loaded: take them off the list"
