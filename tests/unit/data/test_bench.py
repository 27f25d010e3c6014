"""What `trainshed data bench` tells of data that is too small to be measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainshed.cli import main

pytestmark = pytest.mark.torch


def test_one_batch_has_no_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.csv"
    path.write_text("a,b\n1,2\n")
    assert main(["data", "bench", str(path), "--workers", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["0", "-", "-"]
    assert main(["data", "bench", str(path), "--workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["rate"] is None


def test_no_sample_is_an_error_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no ne.csv"
    path.write_text("")
    assert main(["data", "bench", str(path), "--workers", "0"]) == 1
    assert "no ne.csv has no samples" in capsys.readouterr().err
