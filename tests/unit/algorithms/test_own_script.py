"""`trainshed predict` with a script of one's own: what it is given, and what becomes of rows that it does not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.algorithms.own_script import predict
from trainshed.base.errors import TrainshedError

DOUBLE = "def predict(model, rows):\n    print('noise')\n    return [2 * float(row['x']) for row in rows]\n"
ID = "01234567890123456789"


def told(tmp_path: Path, script: str, data: str, name: str = "rows.csv") -> None:
    (tmp_path / name).write_text(data)
    asked(tmp_path, script, name)


def asked(tmp_path: Path, script: str, name: str) -> None:
    (tmp_path / "mine_to_predict.py").write_text(script)
    assert predict(str(tmp_path / "mine_to_predict.py"), str(tmp_path), str(tmp_path / name)) == 0


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_ids_stay_and_damaged_rows_do_not_lose_the_others(tmp_path: Path, lines: Any) -> None:
    told(tmp_path, DOUBLE, f"id,x\n{ID},1.5\nb,zz\nc,3\nd\n")
    first, second, third, fourth = lines()
    assert first == {"id": ID, "x": "1.5", "prediction": 3.0} and third["prediction"] == 6.0
    assert second["error"].startswith("ValueError: could not convert") and second["id"] == "b"
    assert fourth["error"].endswith("rows.csv, row 4: 1 cells, not 2")


def test_json_lines_keep_their_types_and_broken_ones_are_named(tmp_path: Path, lines: Any) -> None:
    told(tmp_path, DOUBLE, '{"id": 12345678901234567890, "x": 1}\n{\n[1]\n\n{"x": 2}\n', "rows.jsonl")
    good, broken, listed, last = lines()
    assert good == {"id": 12345678901234567890, "x": 1, "prediction": 2.0} and last["prediction"] == 4.0
    assert ":2: is not a JSON object" in broken["error"] and ":3: is not a JSON object" in listed["error"]


def test_sagemakers_names_and_a_model_that_is_loaded_once(tmp_path: Path, lines: Any) -> None:
    script = "loaded = []\ndef model_fn(folder):\n    loaded.append(folder)\n    return 3\n"
    told(
        tmp_path,
        script + "def predict_fn(rows, model):\n    return [{'x': model, 'n': len(loaded)} for _ in rows]\n",
        "x\n1\n",
    )
    assert lines() == [{"input_x": "1", "x": 3, "n": 1}]


def test_other_files_are_rows_by_their_path(tmp_path: Path, lines: Any) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.png").write_bytes(b"x")
    (tmp_path / "data/b.csv").write_text("path\ny\n")
    (tmp_path / "data/.hidden").write_text("")
    asked(tmp_path, "def predict(model, rows):\n    return [row['path'] for row in rows]\n", "data")
    assert [Path(row["prediction"]).name for row in lines()] == ["a.png", "y"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("x = 1\n", r"has no function predict\(model, rows\)"),
        ("def predict(model, rows):\n    return [1]\n", "gave 1 answers for 2 rows: it gives one a row"),
    ],
)
def test_a_script_that_cannot_predict_is_refused(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(TrainshedError, match=said):
        told(tmp_path, script, "x\n1\n2\n")


def test_nothing_predicted_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "mine_to_predict.py").write_text(DOUBLE)
    (tmp_path / "rows.csv").write_text("x\na\n")
    assert predict(str(tmp_path / "mine_to_predict.py"), str(tmp_path), str(tmp_path / "rows.csv")) == 1
