"""The table of columns or fields that every program prints, and the check of data that ends before training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import Module, Train, channel

needs("pyarrow", "numpy")
pyarrow: Any = Lazy("pyarrow")
parquet: Any = Lazy("pyarrow.parquet")

ROWS = "y,day,price,city,gone\n" + "".join(f"{n},2024-01-{n + 2:02d},{n / 2},{'ab'[n % 2]},\n" for n in range(20))


@pytest.fixture
def looked(module: Module, started_here: Train, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a program prints that looks at its data alone."""

    def look(program: str, *arguments: str) -> str:
        with pytest.raises(module("_common").Looked):
            started_here(program, "--check_data", *arguments)
        return capsys.readouterr().out

    return look


def line_of(told: str, name: str) -> list[str]:
    line = next(line for line in told.splitlines() if line.strip().startswith(name))
    return [" ".join(part.split()) for part in line.strip().split("  ") if part.strip()]


def test_columns_of_a_table_are_told(looked: Callable[..., str], tmp_path: Path) -> None:
    needs("xgboost")
    channel(tmp_path / "train", ROWS)

    told = looked("tabular.py", "--train", "train", "--target", "y")

    assert told.startswith("the channel train: 20 rows, 5 columns\n")
    assert line_of(told, "day") == [
        "day", "date", "20 values, 20 different", "2024-01-02 to 2024-01-21", "-> year, month, day, weekday",
    ]  # fmt: skip
    assert line_of(told, "y (target)")[-1] == "-> number to learn"
    assert line_of(told, "city")[1:] == ["text", "20 values, 2 different", "a, b", "-> 2 categories"]
    assert "20 missing" in line_of(told, "gone")[2] and "nothing" in line_of(told, "gone")[-1]
    assert not (tmp_path / "model").exists()


def test_a_name_with_a_line_end_takes_one_line(module: Module) -> None:
    told = module("_told").lines("a\ntitle", [["first\nname\r", "x\u2028\x1b[2J"], ["é", "y"]])
    assert told == ["a\\ntitle", "  first\\nname\\r  x\\u2028\\x1b[2J", "  é              y"]


def test_dates_of_parquet_are_those_of_csv(module: Module, tmp_path: Path) -> None:
    tables, columns = module("_tables"), module("_columns")
    text = [f"2024-01-{n + 2:02d}" for n in range(9)]
    for kind in ("string", "date32", "timestamp[us]", "timestamp[us, tz=UTC]"):
        typed = {"string": pyarrow.string(), "date32": pyarrow.date32(), "timestamp[us]": pyarrow.timestamp("us")}
        given = pyarrow.array(text).cast(typed.get(kind, pyarrow.timestamp("us")))
        given = given if "tz" not in kind else given.cast(pyarrow.timestamp("us", "UTC"))
        parquet.write_table(pyarrow.table({"y": list(range(9)), "day": given}), tmp_path / "t.parquet")
        table = tables.read_files([str(tmp_path / "t.parquet")], tables.How(target="y"), "the channel train")
        features = columns.Features.of(table)
        assert features.matrix(table, list(range(9)))[:2].tolist() == [[2024, 1, 2, 2], [2024, 1, 3, 3]], kind


def test_what_is_refused_in_training_is_refused_the_same(module: Module, started_here: Train, tmp_path: Path) -> None:
    needs("xgboost")
    channel(tmp_path / "train", ROWS.replace("2024-01-09", "9 January"))
    said = []
    for more in ([], ["--check_data"]):
        with pytest.raises(module("_common").Problem) as raised:
            started_here("tabular.py", "--train", "train", "--target", "y", *more)
        said.append(str(raised.value))

    assert said[0] == said[1] and "row 8: day is '9 January', and a date (2024-12-31) in most rows" in said[0]


def test_other_programs_tell_their_fields(looked: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "t.csv").write_text("text,label\n" + "".join(f"word {n},{'ab'[n % 2]}\n" for n in range(30)))
    (tmp_path / "chats").mkdir()
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"}]
    (tmp_path / "chats" / "c.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (tmp_path / "series").mkdir()
    (tmp_path / "series" / "s.jsonl").write_text(
        json.dumps({"start": "2024-01-02 00:00:00", "target": [1.0, None, 3.0, 4.0, 5.0], "cat": [0]}) + "\n"
    )

    needs("transformers", "gluonts")
    assert line_of(looked("text_classification.py", "--train", "texts"), "label")[-1] == "-> 2 classes"
    chats = looked("fine_tune.py", "--train", "chats", "--validation_fraction", "0")
    assert line_of(chats, "turns of assistant")[-1] == "-> learnt"
    assert line_of(chats, "turns of user")[-1] == "-> read, not learnt"
    series = ["--train", "series", "--time_freq", "D", "--prediction_length", "2", "--context_length", "2", "--epochs", "1"]
    assert line_of(looked("forecasting.py", *series), "target")[2] == "4 values, 4 different, 1 missing"


def test_pictures_are_told(looked: Callable[..., str], tmp_path: Path) -> None:
    needs("torch", "PIL")
    from PIL import Image

    for at in range(12):
        path = tmp_path / "train" / "ab"[at % 2] / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (at, 0, 0)).save(path)

    told = looked("image_classification.py", "--train", "train", "--validation_fraction", "0.2")

    count = int(told.split(":")[1].split()[0])
    assert line_of(told, "image")[2:] == [f"{count} values", "-> pixels, 40 x 40 with 3 channels"]
    assert line_of(told, "label")[2] == f"{count} values, 2 different"


@pytest.mark.parametrize("program", ["knn", "clustering", "pca", "anomaly"])
def test_programs_on_scikit_learn_tell_their_columns(looked: Callable[..., str], tmp_path: Path, program: str) -> None:
    needs("sklearn", "skops")
    channel(tmp_path / "train", "".join(f"{n % 2},{n / 7},{n}\n" for n in range(9)))
    more = {
        "knn": ["--k", "2", "--predictor_type", "classifier"],
        "clustering": ["--k", "2"],
        "pca": ["--num_components", "1"],
    }

    told = looked(f"{program}.py", "--train", "train", *more.get(program, []))

    assert told.startswith("the channel train: 9 rows, 3 columns\n")
