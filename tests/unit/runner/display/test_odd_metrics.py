"""Metrics of any name that a file may hold, in what people see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.extras import needs
from support.run_folders import lay_run
from trainshed import runner
from trainshed.cli import main


@pytest.mark.safety
def test_a_metrics_name_never_controls_the_terminal_or_breaks_a_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("trainshed.studio")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    odd = ["\ud800", "a\x1b[31mb", "line\nbreak", "\u202eabc", "=cmd()", "x" * 255, "\x00"]
    run = lay_run(tmp_path / "runs/one", metrics={name: [float("nan"), 1.0] for name in odd})
    record = {"format": 1, "state": "Completed", "seconds": 1.0, "phases": [], "cluster": {"rank": 0}}
    (run / "algo-1/output/data/run").mkdir(parents=True)
    (run / "algo-1/output/data/run/algo-1.json").write_text(json.dumps(record))
    for words in (
        ("status", "one"), ("status", "one", "--json"), ("compare", "one", "one"), ("compare", "one", "one", "--json"),
        ("metrics", "show", "one"), ("show", "one"), ("ls",), ("ls", "--json"), ("report", "one", "-o", "page.html"),
    ):  # fmt: skip
        assert main([*words]) == 0, words
        said = capsys.readouterr().out
        assert "\x1b" not in said and "\u202e" not in said, words

    assert {*runner.find("one").metrics} == {*odd}
