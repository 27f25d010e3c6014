"""What a session says and keeps, and how another process ends it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainshed.studio.batches.folder import Folder
from trainshed.studio.batches.session import Log, end_worker
from trainshed.studio.steps.steps_folder import StepsFolder
from trainshed.studio.tune.tuning_folder import TuningFolder

# Holds a folder, and ends at a signal.
WORKER = """\
import signal, sys
from {module} import {kind}
folder = {kind}(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
folder.claim()
print("claimed", flush=True)
signal.sigwait([signal.SIGTERM])
"""


@pytest.mark.safety
@pytest.mark.parametrize("kind", [TuningFolder, StepsFolder])
@pytest.mark.parametrize("kill", [False, True])
def test_the_process_that_works_in_a_folder_is_ended(kind: type[Folder], kill: bool, tmp_path: Path) -> None:
    script = WORKER.format(module=kind.__module__, kind=kind.__name__)
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "b")], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == b"claimed\n"
        folder = kind(str(tmp_path / "b"))
        assert folder.worker == worker.pid
        end_worker(folder, kill=kill)

        assert worker.wait(60) == 0 and folder.worker == 0
    end_worker(folder, kill=kill)


def test_a_line_is_said_and_kept_with_its_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Log(str(tmp_path / "log")).say("two\nlines")
    Log(str(tmp_path / "gone/log")).say("more")

    said = capfd.readouterr().err
    assert said.count("\n") == 2 and said.startswith("trainshed: two") and said.endswith("trainshed: more\n")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ trainshed: two.*lines\n", (tmp_path / "log").read_text())
