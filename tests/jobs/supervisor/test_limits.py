"""Jobs under a limit of open files: more ranks than it lets `train` serve."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any

import pytest

from faults.harness import MARK, survivors

RANKS = 12
TOGETHER = f"""\
import os, time
open("begun" + os.environ["RANK"], "w").close()
while sum(name.startswith("begun") for name in os.listdir()) < {RANKS}:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("option, status", [("-n", 1), ("-Sn", 0)], ids=["that cannot be raised", "that train raises"])
def test_many_ranks_under_a_limit_of_open_files(option: str, status: int, job_tree: Any) -> None:
    job_tree.code("train.py", TOGETHER)
    ranks = {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": str(RANKS)}
    job_tree.configure(hyperparameters=ranks)
    mark = uuid.uuid4().hex
    command = f'ulimit {option} 32; exec "$0" -m trainshed.container.main'

    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable],
        env=job_tree.environ(**{MARK: mark}),
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == status, done.stderr
    assert survivors(mark) == {}
    if status:
        assert job_tree.failure.startswith("LimitError: "), job_tree.failure
        assert "the limit of 32 open files is reached" in job_tree.failure
        assert "ulimit -n 65536" in job_tree.failure
