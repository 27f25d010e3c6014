"""`trainshed watch` on a real run: in a terminal, and where there is none."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from support.runner_project import TOOLKIT, Project, wait_until

SCRIPT = """\
import os, time
for step in range(1, 10000):
    print(f"metric loss={1 / step:.5f} step={step}", flush=True)
    if os.path.exists(END):
        raise SystemExit(3)
    time.sleep(0.05)
"""


@pytest.mark.spine
def test_a_run_is_shown_until_it_ends_and_its_status_is_ours(project: Project, tmp_path: Path) -> None:
    end = tmp_path / "end"
    project.write({"train.py": SCRIPT.replace("END", repr(str(end)))})
    mine = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert project.trainshed("run", "train.py", "--detach", **mine).status == 0
    wait_until(lambda: "loss" in project.command("watch", "--once", **mine).stdout, "the first values")

    master, slave = pty.openpty()
    environ = {**os.environ, "PYTHONPATH": TOOLKIT, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **mine}
    command = [sys.executable, "-m", "trainshed.cli", "watch"]
    process = subprocess.Popen(command, cwd=project.folder, env=environ, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    piped = project.start("watch", **mine)
    seen = b""
    while True:
        try:
            block = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        seen += block
        if b"metric loss" in seen and not end.exists():
            end.touch()
    os.close(master)

    assert process.wait() == 3
    text = seen.decode()
    assert text.startswith("\x1b[?1049h") and "\x1b[?1049l" in text, "the terminal is as it was"
    assert "InProgress Training" in text and "Failed" in text.rpartition("\x1b[?1049l")[2]
    said, _ = piped.communicate(timeout=120)
    assert piped.returncode == 3 and "\x1b" not in said and "loss" in said and "Failed" in said.splitlines()[-1] + said
