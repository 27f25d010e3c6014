"""`metrics.log` in a script."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainshed.metrics.writing import FOLDER_VARIABLE, MetricsWriter


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "metrics"))
    monkeypatch.setenv("RANK", "3")
    return tmp_path / "metrics"


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_values_are_in_the_file_at_once_with_rank_and_step(folder: Path) -> None:
    log = MetricsWriter().log
    log(loss=0.5, step=1)
    log({"val/loss": float("nan")}, accuracy="0.75", step=2, epoch=0.5)

    keys = ("MetricName", "Value", "Step", "Epoch", "Rank")
    assert [tuple(line.get(key) for key in keys) for line in lines(folder)] == [
        ("loss", 0.5, 1, None, 3),
        ("val/loss", "NaN", 2, 0.5, 3),
        ("accuracy", 0.75, 2, 0.5, 3),
    ]


def test_outside_of_a_job_the_values_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    MetricsWriter().log(loss=0.5, step=1)

    assert capsys.readouterr().out == "metric loss=0.5 step=1\n"


def test_a_forked_child_has_a_file_of_its_own(folder: Path) -> None:
    writer = MetricsWriter()
    writer.log(loss=1)
    child = os.fork()
    if child == 0:
        writer.log(loss=2)
        os._exit(0)
    os.waitpid(child, 0)

    assert len(list(folder.iterdir())) == 2 and len(lines(folder)) == 2


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"loss": "low"}, TypeError, "the metric 'loss' is not a number: str"),
        ({"loss": [1, 2]}, TypeError, "the metric 'loss' is not a number: list"),
        ({"loss": 1, "step": 1.5}, TypeError, "step must be a whole number, not 1.5"),
        ({"rank": 1}, ValueError, "'rank' says where something was measured"),
        ({"": 1}, ValueError, "'' is not a name for a metric"),
        ({"a\nb": 1}, ValueError, "is not a name for a metric"),
    ],
)
def test_wrong_values_are_refused_and_nothing_is_written(
    folder: Path, arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    step = arguments.pop("step", None)
    with pytest.raises(kind, match=text):
        MetricsWriter().log(arguments, step=step)
    assert not folder.exists()


def test_a_folder_that_takes_nothing_costs_one_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write_text("")
    log = MetricsWriter().log
    log(loss=1)
    log(loss=2)

    assert capsys.readouterr().err == f"trainshed: metrics cannot be written to {folder}: File exists\n"
