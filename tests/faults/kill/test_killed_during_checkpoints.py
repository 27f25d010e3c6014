"""Runs killed by SIGKILL at random moments, most of them while a checkpoint is being written.

`CHECKPOINT_KILLS=300` runs the long campaign; `benchmarks/checkpoint_kill.py` is the program either way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.safety]

KILLS = int(os.environ.get("CHECKPOINT_KILLS", "0"))


@pytest.mark.parametrize(("ranks", "kills"), [(2, KILLS or 12), pytest.param(1, KILLS or 24, marks=pytest.mark.heavy)])
def test_no_run_resumes_from_a_bad_checkpoint_or_loses_more_than_one_interval(
    ranks: int, kills: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks/checkpoint_kill.py"),
            *("--kills", str(kills), "--ranks", str(ranks), "--seed", str(kills), "--folder", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "toolkit"), "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == []
    # Or the test would not test what it says. How many of a dozen random moments fall into a write is the machine's doing.
    assert found["during_write"] > (kills / 4 if KILLS else 0)
    assert found["losses_compared"] > kills
    assert found["resumed_from_bad"] == found["lost_durable"] == found["lost_more_than_one_interval"] == 0, found
    assert done.returncode == 0, done.stderr
