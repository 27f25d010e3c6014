"""`--predict` of the programs: one damaged row or file does not lose the others, and ids keep every digit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.extras import needs
from support.programs import Module, Train

ID = 1234567890123456789


@pytest.fixture
def rows(module: Module, started_here: Train, tmp_path: Path) -> Any:
    """Predicts with a model of a table whose column id is left out; gives the lines."""
    needs("xgboost")
    lines = "".join(f"{n},{n % 2},{['oak', 'elm'][n % 2]},{n}\n" for n in range(30))
    (tmp_path / "train.csv").write_text(f"id,y,tree,size\n{lines}")
    words = ("--train", "train.csv", "--target", "y", "--objective", "binary:logistic", "--ignore_columns", "id")
    started_here("tabular", *words, "--num_round", 1)

    def told(path: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in started_here("tabular", "--predict", path).splitlines()]

    return told


def test_a_damaged_row_is_named_and_the_others_are_predicted(rows: Any, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(f"id,tree,size\n{ID},oak,1\n{ID + 1},elm,big\n3,oak\n{ID + 2},elm,4\n")
    told = rows("new.csv")
    assert [(one["id"], one["row"]) for one in told[:2]] == [(str(ID), 1), (str(ID + 2), 4)]
    assert all("class" in one for one in told[:2])
    assert [one["error"].partition(": ")[0] for one in told[2:]] == ["new.csv, row 3", "new.csv, row 2"]
    assert told[3]["id"] == str(ID + 1)


def test_a_damaged_file_of_several_is_named(rows: Any, tmp_path: Path) -> None:
    needs("pyarrow")
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "new").mkdir()
    (tmp_path / "new/a.parquet").write_bytes(b"PAR1 and nothing")
    parquet.write_table(
        pyarrow.table({"id": [ID, ID + 1], "tree": ["oak", "elm"], "size": [1, 2]}), tmp_path / "new/b.parquet"
    )
    told = rows("new")
    assert [one["id"] for one in told[:2]] == [ID, ID + 1] and Path(told[0]["file"]).name == "b.parquet"
    assert "is not a whole Parquet file" in told[2]["error"]


def test_columns_with_the_names_of_answers_stay(rows: Any, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("class,row,tree,size\nold,77,oak,1\nnew,78,elm,2\n")
    first = rows("new.csv")[0]
    assert (first["input_class"], first["input_row"], first["row"]) == ("old", "77", 1)


def test_rows_of_libsvm_are_spared_one_by_one(module: Module, tmp_path: Path) -> None:
    tables, spare = module("_tables"), module("_sparing").Spare(lambda part: None)
    (tmp_path / "a.svm").write_text("1 0:1 1:2\n0 0:2 1:x\n1 1:3\n")
    table = tables.read_files([str(tmp_path / "a.svm")], tables.How(labelled=False, spare=spare), "x")
    assert table.rows == 2 and table.extra["row"].tolist() == [1, 3]
    assert [row for row, _, _ in spare.refused] == [2] and "is not index:value" in spare.refused[0][2]


def test_a_file_that_has_no_such_column_is_refused_as_before(rows: Any, tmp_path: Path, module: Module) -> None:
    (tmp_path / "new.csv").write_text("id,tree\n1,oak\n2,elm\n")
    with pytest.raises(module("_common").Problem, match="has no column 'size', which the model was trained with"):
        rows("new.csv")


def test_texts_that_are_damaged_are_named(module: Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = module("_predicting").Answers()
    (tmp_path / "q").mkdir()
    (tmp_path / "q/a.jsonl").write_text('{"id": 7, "text": "a"}\n{"text": 3}\n{\n')
    (tmp_path / "q/b.csv").write_text("text,id\nb,007\n")
    found = module("_labelled").texts_of(str(tmp_path / "q"), "", answers)
    assert found == [({"file": "a.jsonl", "id": 7}, "a"), ({"file": "b.csv", "id": "007"}, "b")]
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["row"], one["file"]) for one in told] == [(2, "a.jsonl"), (3, "a.jsonl")]


def test_pictures_that_are_damaged_are_named(module: Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("torch", "PIL")
    from PIL import Image

    Image.new("L", (8, 6)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"\x89PNG")
    answers = module("_predicting").Answers()
    [(path, size, pixels)] = module("_images").to_predict(str(tmp_path), (1, 4, 4), answers)
    assert (path.name, size, tuple(pixels.shape)) == ("good.png", (8, 6), (1, 1, 4, 4))
    assert "cannot be read as an image" in json.loads(capsys.readouterr().out)["error"]


def test_where_nothing_can_be_predicted_the_program_fails(module: Module) -> None:
    answers = module("_predicting").Answers()
    answers.refuse({}, "no")
    answers.refuse({}, "neither")
    with pytest.raises(module("_common").Problem, match=r"predict: no \(and 1 more\)"):
        answers.end()
