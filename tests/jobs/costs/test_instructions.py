"""What every job pays does not become a tenth dearer without anybody's word (benchmarks/instructions.py)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.paths import ROOT

NOT_HERE = 2


@pytest.mark.heavy
def test_start_log_line_and_reader_cost_what_they_did() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRAINSHED_")}
    command = [sys.executable, str(ROOT / "benchmarks/instructions.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode == NOT_HERE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nif it has to be: benchmarks/instructions.py --record"
