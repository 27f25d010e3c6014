"""`trainshed predict`: which program says it, in which image, and the files that predictions are written to."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from support.extras import needs
from trainshed.base.errors import TrainshedError
from trainshed.cli import main
from trainshed.places import predict
from trainshed.places.predict import ModelSource

SCRIPT = """\
import os
def predict(model, rows):
    return [{"n": int(row["n"]), "weights": open(os.path.join(model, "w.txt")).read()} for row in rows]
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of a script, which here stands in for that of a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model/code").mkdir(parents=True)
    (tmp_path / "model/w.txt").write_text("7")
    (tmp_path / "mine.py").write_text(SCRIPT)
    own = predict.program_of
    mine = str(tmp_path / "mine.py")
    monkeypatch.setattr(predict, "program_of", lambda at, env: mine if at == str(tmp_path / "model") else own(at, env))
    (tmp_path / "rows.csv").write_text("id,n\n007,1\n008,x\n")
    return tmp_path / "model"


def test_a_script_predicts_and_the_file_has_ids_and_errors(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model", "rows.csv", "-o", "out.csv", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["predicted"], told["failed"], told["output"]) == (1, 1, "out.csv")
    names, first, second = Path("out.csv").read_text().splitlines()
    assert (names, first) == ("id,input_n,n,weights,error", "007,1,1,7,")
    assert second.startswith("008,") and "invalid literal" in second


def test_without_a_file_predictions_are_printed_as_they_are_made(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model", "rows.csv"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out.splitlines()[0]) == {"id": "007", "input_n": "1", "n": 1, "weights": "7"}
    assert "trainshed: 1 predicted, 1 could not be: ValueError" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model", "absent.csv"], "there is no file or folder absent.csv"),
        (["model", "rows.csv", "-o", "x.xlsx"], "predictions are written as .csv, .json, .jsonl, .parquet"),
        (["model", "rows.csv", "-o", "no/x.csv"], "there is no such folder"),
        (["model", "rows.csv", "--hp", "a=b"], "a script's predict has none"),
        (["model/code", "rows.csv"], "names no ready program that made it"),
        (["nothing", "rows.csv"], "there are no runs"),
    ],
)
def test_what_cannot_be_done_is_said(
    model: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(model.parent / "state"))  # without the runs of other tests
    assert main(["predict", *words]) != 0
    assert said in capsys.readouterr().err


def test_nothing_that_a_model_brings_or_names_is_started_but_a_ready_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from anybody: neither its own code, nor a script of the working directory that it names."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("raise SystemExit('started')")
    Path("evil.algorithm.yaml").write_text("description: x\nhyperparameters: {}\nchannels: {train: {help: x}}\n")
    Path("model/code").mkdir(parents=True)
    Path("model/code/inference.py").write_text(SCRIPT)
    for named in ("evil", "./evil", "nothing", 7):
        Path("model/model.json").write_text(json.dumps({"program": named}))
        with pytest.raises(TrainshedError, match="names no ready program"), predict.source_of("model", os.environ):
            pass


def test_the_image_sees_the_same_folders_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.places.container_engine import Engine

    monkeypatch.setattr(predict, "find_engine", lambda environ: Engine(("docker",)))
    command = predict._in_image(ModelSource("r", "/m", "tabular", "", "img"), ("/m", "/d, e", "/o"), ["x.y", "tabular"], {})
    mounts = [word for before, word in itertools.pairwise(command) if before == "--mount"]
    assert mounts[0] == "type=bind,source=/m,target=/m,readonly" and mounts[-1] == "type=bind,source=/o,target=/o"
    assert mounts[1] == 'type=bind,"source=/d, e","target=/d, e",readonly'
    assert command[-5:] == ["python3", "img", "-m", "x.y", "tabular"] and "none" in command


def test_parquet_keeps_long_numbers_and_values_of_several_kinds(tmp_path: Path) -> None:
    needs("pyarrow")
    from pyarrow import parquet

    rows = [{"id": 2**60 + 1, "mixed": 1, "parts": [1, 2]}, {"id": 2**60 + 3, "mixed": "a", "error": "no"}]
    predict.write_rows(rows, str(tmp_path / "a.parquet"))
    read = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["id"] for row in read] == [2**60 + 1, 2**60 + 3]
    assert [row["mixed"] for row in read] == ["1", "a"] and read[0]["parts"] == [1, 2] and read[1]["error"] == "no"


def test_nothing_is_left_where_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(TrainshedError, match="cannot be written"):
        predict.write_rows([{"a": 1}], str(tmp_path / "a.csv"))
    assert os.listdir(tmp_path) == ["a.csv"]
