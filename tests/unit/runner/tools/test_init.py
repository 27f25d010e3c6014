"""What `trainshed init` writes works at once: under plain Python, and where no package index has trainshed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from trainshed import __version__
from trainshed.runner.tools.init import SCRIPT, dockerfile

PLAIN = {"PATH": "/usr/bin:/bin"}


def test_the_script_runs_under_plain_python_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(SCRIPT)
    for place in (tmp_path / "code", tmp_path):
        command = [sys.executable, str(tmp_path / "code/train.py"), "--epochs", "2"]
        done = subprocess.run(command, cwd=place, env=PLAIN, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("metric loss=") == 2, "it begins anew each time: nothing is kept"
        assert json.loads((place / "model/line.json").read_text()).keys() == {"slope", "offset"}


def test_the_script_goes_on_from_its_checkpoint_in_a_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    job = {**PLAIN, "SM_CHECKPOINT_DIR": str(tmp_path), "SM_MODEL_DIR": str(tmp_path / "made"), "SM_CURRENT_HOST": "algo-1"}

    def run(epochs: int) -> str:
        command = [sys.executable, "train.py", "--epochs", str(epochs)]
        return subprocess.run(command, cwd=tmp_path, env=job, capture_output=True, text=True, check=True).stdout

    assert run(2).count("metric loss=") == 2
    assert run(3).startswith("going on at epoch 2\n") and (tmp_path / "made/line.json").is_file()


def test_ranks_of_a_host_do_not_write_the_same_unfinished_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    told = "import os, runpy; os.replace = lambda old, new: print('unfinished', old); runpy.run_path('train.py')"
    job = {**PLAIN, "SM_CHECKPOINT_DIR": str(tmp_path), "SM_MODEL_DIR": str(tmp_path), "SM_CURRENT_HOST": "algo-1"}

    def names(rank: int) -> set[str]:
        environ = {**job, "RANK": str(rank)}
        done = subprocess.run(
            [sys.executable, "-c", told], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        )
        return {line for line in done.stdout.splitlines() if line.startswith("unfinished ")}

    assert names(0) and not names(0) & names(1)


def test_the_dockerfile_says_what_to_take_where_no_index_has_trainshed() -> None:
    for requirements in (False, True):
        lines = dockerfile("train.py", requirements).splitlines()
        (other,) = [line for line in lines if line.startswith("# ARG TRAINSHED=")]
        assert other == f"# ARG TRAINSHED=./trainshed-{__version__}-py3-none-any.whl"
        assert any("pip wheel --no-deps -w . CHECKOUT" in line for line in lines)
        install = next(number for number, line in enumerate(lines) if '"$TRAINSHED"' in line)
        assert lines.index("ARG TRAINSHED=trainshed") < lines.index("COPY . .") < install, "the wheel is there by then"
        assert not re.search(r"https?://", "\n".join(lines))
