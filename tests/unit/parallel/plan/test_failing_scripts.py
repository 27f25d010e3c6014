"""`trainshed plan` runs a person's script: what that raises is told as the script's, and a defect of ours as ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import trainshed
from support.command_line import answer
from support.offenders import check_each

pytestmark = pytest.mark.torch  # `plan` loads it

INIT = "import os\n\nprint(os.environ['SM_CHECKPOINT_DIR'])\n"
CASES = {
    "syntax": ("x = (\n", 1, "the script fails at train.py:1: SyntaxError: '(' was never closed"),
    "key": ("x = 1\n{}['no']\n", 1, "the script fails at train.py:2: KeyError: 'no'"),
    "variable": (INIT, 1, "the script fails at train.py:3: KeyError: 'SM_CHECKPOINT_DIR'"),
    "import": ("import not_there_at_all\n", 1, "the script fails at train.py:1: ModuleNotFoundError: No module named"),
    "helper": ("import failing_helper\n\nfailing_helper.run()\n", 1, "failing_helper.py:2: ValueError: boom"),
    "library": ("import json\n\njson.loads('{')\n", 1, "the script fails at train.py:3: json.decoder.JSONDecodeError"),
    "encoding": ("x = '\udcff'\n", 1, "the script fails at train.py:1: SyntaxError: "),
    "recursion": ("def f():\n    f()\n\n\nf()\n", 1, "the script fails at train.py:2: RecursionError"),
    "no words": ("raise Exception\n", 1, "the script fails at train.py:1: Exception"),
    "exit with words": ("import sys\nsys.exit('no data')\n", 1, "no data"),
    "exit with a number": ("import sys\nprint('bad', file=sys.stderr)\nsys.exit(3)\n", 3, "bad"),
    "good exit": ("import sys\nsys.exit(0)\n", 1, "train.py ended without a step of trainshed.parallel"),
    "no step": ("print('done')\n", 1, "train.py ended without a step of trainshed.parallel"),
}  # fmt: skip


def test_the_error_of_a_script_is_told_with_its_place_and_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_helper.py").write_text("def run():\n    raise ValueError('boom')\n")

    def check(name: str) -> None:
        text, status, said = CASES[name]
        (tmp_path / "train.py").write_text(text, errors="surrogateescape")
        monkeypatch.setattr(sys, "path", sys.path[:])
        done = answer(["plan", "train.py", "--stages", "2"], tmp_path, os.environ)
        assert done.status == status, done.output
        assert said in done.stderr and "defect of trainshed" not in done.stderr, done.stderr
        assert "runpy" not in done.stderr and "command.py" not in done.stderr, "frames of ours say nothing to a person"
        assert name != "variable" or "set SM_CHECKPOINT_DIR for this command" in done.stderr

    check_each(CASES, check)


def test_a_defect_of_ours_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = os.path.join(os.path.dirname(trainshed.__file__), "parallel", "engine", "made_up.py")
    (tmp_path / "train.py").write_text(f"exec(compile('1 / 0', {inside!r}, 'exec'))\n")
    monkeypatch.setattr(sys, "path", sys.path[:])
    done = answer(["plan", "train.py", "--stages", "2"], tmp_path, os.environ)
    assert (done.status, "this is a defect of trainshed" in done.stderr) == (70, True), done.output


def test_a_file_that_is_there_is_not_written_over_by_a_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError\n")
    done = answer(["plan", "--emit", "train.py", "train.py"], tmp_path, os.environ)
    assert done.status and "--emit train.py: it is there already" in done.stderr
    assert (tmp_path / "train.py").read_text() == "raise AssertionError\n"
