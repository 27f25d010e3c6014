"""The tutorials work as they stand: each script in an empty folder, the notebook cell by cell in one process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.extras import needs
from support.paths import DOCS, ROOT, TOOLKIT
from support.tutorials import TUTORIALS, cells_of

needs("trainshed.studio")
NEEDS = {"two-ranks": "torch", "two-machines": "torch", "does-not-fit": "torch", "notebook": "cloudpickle"}
# What a reader sees at its end, or on the way.
SEEN = {
    "first-run": "report.html",
    "two-ranks": "it trains as one process does",
    "resume": "going on at epoch",
    "two-machines": "algo-2",
    "tune": "8 of 8 trials over",
    "steps": "reused",
    "does-not-fit": "model.pt",
    "notebook": "judge completed",
}


def environment(home: Path) -> dict[str, str]:
    """A reader's shell, with everything of the user in one folder."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(home),
        "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1", "CHECKOUT": str(ROOT),
    }  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_works_as_it_stands(path: Path, tmp_path: Path) -> None:
    needs(*filter(None, [NEEDS.get(path.stem)]))
    work = tmp_path / "work"
    work.mkdir()
    command = ["bash", "-eo", "pipefail", str(path)]
    if path.suffix == ".ipynb":
        command = [sys.executable, "-c", "\n\n".join(text for kind, text in cells_of(path) if kind == "code")]
    done = subprocess.run(
        command, cwd=work, env=environment(tmp_path), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert SEEN[path.stem] in done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_the_five_tasks_in_python_work(tmp_path: Path) -> None:
    needs("cloudpickle")
    shutil.copytree(DOCS / "evidence/python", tmp_path / "work")
    (tmp_path / "work/data").mkdir()
    done = subprocess.run(
        [sys.executable, "with_trainshed.py"],
        cwd=tmp_path / "work",
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for said in ("model.tar.gz", "loss", ": Completed> {'loss': ", "invalid float value: 'high'"):
        assert said in done.stdout
