"""library auto: every library has its share of the time, one metric judges them, and the best model is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints.tables import measured
from support import programs
from support.extras import needs
from support.lazy import Lazy

needs("xgboost", "lightgbm", "sklearn", "skops")
numpy: Any = Lazy("numpy")
PROGRAM = "tabular.py"


def board(folder: Path) -> list[list[str]]:
    return json.loads((folder / "output" / "tables" / "leaderboard.json").read_text())["rows"]


def write(folder: Path, kind: str) -> None:
    """A line, which a linear model learns best, or a chessboard of two classes, which it cannot learn."""
    draw = numpy.random.default_rng(1)
    a, b = draw.random((2, 400))
    y = 3 * a - b if kind == "line" else numpy.where((a > 0.5) != (b > 0.5), "yes", "no")
    (folder / "t.csv").write_text("y,a,b\n" + "".join(f"{one},{p},{q}\n" for one, p, q in zip(y, a, b, strict=True)))


def test_a_line_is_for_the_linear_model_and_a_chessboard_for_trees(tmp_path: Path) -> None:
    for kind, metric in (("line", "rmse"), ("chessboard", "logloss")):
        write(tmp_path, kind)
        output = programs.run(PROGRAM, "--train", "t.csv", "--target", "y", "--library", "auto", cwd=tmp_path)

        rows = board(tmp_path)
        assert {row[0] for row in rows} == {"xgboost", "lightgbm", "catboost", "linear"}
        scores = [float(row[1]) for row in rows if row[1]]
        assert scores == sorted(scores) and len(scores) >= 3
        assert (rows[0][0] == "linear") == (kind == "line")
        assert f"the best: {rows[0][0]}" in output and "Leaderboard\n" in output
        assert measured(output)[-1][f"validation-{metric}"] == pytest.approx(scores[0], rel=1e-3)
        predicted = programs.run(PROGRAM, "--predict", "t.csv", cwd=tmp_path).splitlines()
        assert len(predicted) == 400 and ("class" in predicted[0]) == (kind == "chessboard")


def test_what_a_library_does_not_take_stands_on_the_board(tmp_path: Path) -> None:
    write(tmp_path, "line")
    programs.run(
        PROGRAM, "--train", "t.csv", "--target", "y", "--library", "auto", "--eta", "0.2",
        "--monotone_constraints", "(1,-1)", "--eval_metric", "mae", cwd=tmp_path,
    )  # fmt: skip

    notes = {row[0]: row[4] for row in board(tmp_path)}
    assert "a linear model has no such thing" in notes["linear"] and "LightGBM has no such thing" in notes["lightgbm"]
    assert board(tmp_path)[0][0] == "xgboost" and not notes["xgboost"]


def test_a_stop_keeps_the_best_so_far(tmp_path: Path) -> None:
    write(tmp_path, "line")
    slow = ["--num_round", "1000000", "--early_stopping_rounds", "1000000", "--time_budget", "100000"]
    arguments = ["--train", "t.csv", "--target", "y", "--library", "auto", *slow]
    with programs.started(PROGRAM, *arguments, cwd=tmp_path) as job:
        job.wait_for(r"^xgboost learns")
        job.processes[0].terminate()
        output = job.succeed()

    assert "the best: xgboost" in output
    assert json.loads((tmp_path / "model" / ".about.json").read_text())["trained"]["finished"] is False
