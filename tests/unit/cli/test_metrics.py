"""`trainshed metrics test`: what a log would give, before a job depends on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainshed.cli import main

LINE = "{'loss': '0.25', 'epoch': '1.0'}\n"
DEFINITIONS = {"loss": "'loss': ([0-9.]+)"}


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "train.log"
    path.write_text(LINE)
    return str(path)


def test_what_is_found_is_a_table_and_status_0(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "test", log]) == 0
    head, loss = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["metric", "values", "first", "last", "least", "most"]
    assert loss == ["loss", "1", "0.25", "0.25", "0.25", "0.25"]


@pytest.mark.parametrize("form", ["list", "object", "job"])
def test_a_definition_that_does_not_fit_is_status_1_and_one_that_would(
    log: str, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = [{"Name": name, "Regex": regex} for name, regex in DEFINITIONS.items()]
    given = {"list": listed, "object": DEFINITIONS, "job": {"program": "a.py", "metric_definitions": DEFINITIONS}}[form]
    path = tmp_path / "given.json"
    path.write_text(json.dumps(given))

    assert main(["metrics", "test", log, "--definitions", str(path)]) == 1
    said = capsys.readouterr().out
    assert "warning: metric 'loss': its regular expression has not matched this line: {'loss': '0.25'" in said
    advised = said.rpartition("this one would match: ")[2].strip()
    assert main(["metrics", "test", log, "--regex", f"loss={advised}"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent.log"], "absent.log cannot be read: No such file"),
        (["LOG", "--definitions", "absent.json"], "absent.json cannot be read"),
        (["LOG", "--definitions", "OTHER"], "holds no metric definitions"),
        (["LOG", "--regex", "loss"], "--regex 'loss' is not NAME=REGEX"),
    ],
)
def test_bad_words_are_one_line(log: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "test", *({"LOG": log, "OTHER": __file__}.get(word, word) for word in words)]) == 1
    assert said in capsys.readouterr().err.splitlines()[0]


def test_a_log_without_metrics_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("hello\n")
    assert main(["metrics", "test", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out == "no metrics found\n"
