"""`trainshed data check`: what it asks of a ready program, and its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.extras import needs
from support.paths import ENTRYPOINTS
from trainshed.cli import main

DATA = "y,x\n1,2\n3,4\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    needs("trainshed.studio", "xgboost", "pyarrow", "numpy", "scipy")  # the core alone starts programs without them
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINSHED_ENTRYPOINTS", str(ENTRYPOINTS))
    (tmp_path / "good.csv").write_text(DATA)
    (tmp_path / "bad.csv").write_text(DATA + "x,4\n")
    return tmp_path


def test_data_is_looked_at_without_training(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "tabular", "good.csv", "--hp", "target=y", "--hp", "num_round=3"]) == 0
    told = capfd.readouterr().out
    assert told.startswith("the channel train: 2 rows, 2 columns\n") and told.endswith("the data is plausible\n")
    assert not (here / "model").exists() and not (here / "output").exists()


def test_what_the_program_refuses_has_status_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "tabular", "bad.csv", "--hp", "target=y"]) == 1
    assert "tabular: error: bad.csv, row 3: the target (y) is 'x', and a number in most rows" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabulr", "good.csv"], "did you mean 'tabular'?"),
        (["tabular", "absent.csv"], "there is no file or folder absent.csv"),
        (["tabular", "good.csv", "--hp", "etta=1"], "is not a hyperparameter of tabular (did you mean 'eta'?)"),
        (["tabular", "good.csv", "--hp", "eta=7"], "'7' is not a number from 0 to 1"),
        (["clustering", "good.csv"], "is missing"),
    ],
)
def test_what_is_asked_wrongly_has_status_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_of_channels_is_taken_as_such(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for channel in ("training", "validation"):
        (here / "data" / channel).mkdir(parents=True)
        (here / "data" / channel / "t.csv").write_text(DATA if channel == "training" else "y,z\n1,2\n")

    assert main(["data", "check", "tabular", "data", "--hp", "target=y"]) == 1
    assert "has no column 'x'" in capfd.readouterr().err
