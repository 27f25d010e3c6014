"""torch's elastic agent as we start it: its end by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import TOOLKIT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_while_torch_is_imported_ends_the_agent_by_that_signal_without_a_traceback(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(f"import os\nos.kill(os.getpid(), {int(number)})\n")
    done = subprocess.run(
        [sys.executable, "-m", "trainshed.container.launchers.elastic", "script.py"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{TOOLKIT}"},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")
