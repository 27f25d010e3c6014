"""tabular.py with LightGBM and with scikit-learn's linear models: the same promises as with XGBoost."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints.tables import LINE, channels, colours, measured, rows, write_csv
from support import programs
from support.extras import needs
from support.lazy import Lazy

needs("xgboost", "lightgbm", "sklearn", "skops")
numpy: Any = Lazy("numpy")
PROGRAM = "tabular.py"
LIGHT = ("--library", "lightgbm")


def trees(folder: Path) -> str:
    """LightGBM's text without what was asked for and where."""
    return (folder / "model" / "model.txt").read_text().partition("\nparameters:")[0]


def test_the_same_as_lightgbms_own_train(tmp_path: Path, tables: Path) -> None:
    import lightgbm

    given = {"learning_rate": 0.2, "num_leaves": 12, "lambda_l2": 2.0, "min_data_in_leaf": 7}
    arguments = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    output = programs.run(PROGRAM, *channels(tables), *LIGHT, "--num_boost_round", "9", *arguments, cwd=tmp_path)

    features, target = rows()
    settings = {**given, "objective": "regression", "num_threads": 1, "verbosity": -1, "deterministic": True, "seed": 0}
    theirs = lightgbm.train(
        settings | {"force_row_wise": True}, lightgbm.Dataset(features.astype("f4"), target.astype("f4")), 9
    )
    ours = lightgbm.Booster(model_file=tmp_path / "model" / "model.txt")
    unseen, truth = (part[:300] for part in rows(1))
    assert numpy.allclose(ours.predict(unseen), theirs.predict(unseen), rtol=1e-12)
    error = math.sqrt(numpy.mean((ours.predict(unseen.astype("f4")) - truth) ** 2))
    assert measured(output)[-1]["validation-rmse"] == pytest.approx(error, rel=1e-4)
    said = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (said["library"], said["lightgbm"], said["trained"]["rounds"]) == ("lightgbm", lightgbm.__version__, 9)
    assert "<svg" in (tmp_path / "output" / "feature_importance.svg").read_text()


def test_three_ranks_measure_what_one_does(tmp_path: Path, tables: Path) -> None:
    arguments = (*channels(tables), *LIGHT, "--num_round", "14")
    (tmp_path / "one").mkdir()
    one = measured(programs.run(PROGRAM, *arguments, cwd=tmp_path / "one"))
    three = measured(programs.run(PROGRAM, *arguments, cwd=tmp_path, ranks=3))

    assert len(one) == len(three) == 14
    for alone, together in zip(one, three, strict=True):
        assert together == pytest.approx(alone, rel=1e-4)


def test_hosts_with_rows_of_their_own_learn_together(tmp_path: Path, tables: Path) -> None:
    output = programs.run(
        PROGRAM, *channels(tables), *LIGHT, "--num_round", "14", "--sharded", "true", cwd=tmp_path, ranks=2
    )
    assert measured(output)[-1]["validation-rmse"] < 0.85 * numpy.std(rows(1)[1][:300])


SAMPLED = ["--subsample", "0.5", "--colsample_bytree", "0.6", "--bagging_freq", "3"]


@pytest.mark.exact
@pytest.mark.parametrize(
    ("how", "ranks"),
    [(SAMPLED, 1), pytest.param([], 1, marks=pytest.mark.matrix), pytest.param(SAMPLED, 2, marks=pytest.mark.heavy)],
    ids=["sampled", "plain", "two-ranks"],
)  # fmt: skip
def test_killed_and_resumed_it_ends_as_if_nothing_had_been(tmp_path: Path, tables: Path, how: list[str], ranks: int) -> None:
    arguments = [*channels(tables), *LIGHT, "--num_round", "30", "--checkpoint_rounds", "7", *how]
    (tmp_path / "whole").mkdir()
    whole = programs.run(PROGRAM, *arguments, cwd=tmp_path / "whole", ranks=ranks)
    kept = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    (tmp_path / "checkpoints").mkdir()
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, ranks=ranks, **kept) as job:
        job.wait_for(r"^\[16\]\t")
        for process in job.processes:
            os.kill(process.pid, signal.SIGKILL)
        job.finish()
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, ranks=ranks, **kept) as job:
        resumed = job.succeed()

    first = int(LINE.findall(resumed)[0][0])
    assert first in (14, 21, 28) and "verified" in job.errors[0]
    assert measured(resumed) == measured(whole)[first:]
    assert trees(tmp_path) == trees(tmp_path / "whole")


@pytest.mark.parametrize("library", ["lightgbm", "linear"])
def test_texts_are_categories_and_classes(tmp_path: Path, library: str) -> None:
    table = colours(tmp_path / "table.csv")
    more = ["--min_data_in_leaf", "5"] if library == "lightgbm" else []
    given = ("--train", str(table), "--target", "kind", "--objective", "multi:softprob", "--library", library, *more)
    output = programs.run(PROGRAM, *given, "--eval_metric", "merror", "--validation_fraction", "0.2", cwd=tmp_path)
    assert measured(output)[-1]["validation-merror"] < 0.1
    (tmp_path / "rows.csv").write_text("colour,size\nred,0\nblue,2\ngreen,-2\nviolet,-2\n")
    printed = programs.run(PROGRAM, "--predict", "rows.csv", "--model_dir", "model", cwd=tmp_path)
    assert [json.loads(line)["class"] for line in printed.splitlines()][:3] == ["warm", "big", "small"]


def test_a_linear_model_is_scikit_learns_own(tmp_path: Path, tables: Path) -> None:
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kept = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    (tmp_path / "checkpoints").mkdir()
    arguments = (*channels(tables), "--library", "linear", "--lambda", "3", "--checkpoint_rounds", "1")
    output = programs.run(PROGRAM, *arguments, cwd=tmp_path, **kept)
    features, target = rows()
    theirs = make_pipeline(SimpleImputer(), StandardScaler(), Ridge(alpha=3)).fit(features.astype("f4"), target.astype("f4"))
    unseen, truth = (part[:300] for part in rows(1))
    error = math.sqrt(numpy.mean((theirs.predict(unseen) - truth) ** 2))
    assert measured(output)[-1]["validation-rmse"] == pytest.approx(error, rel=1e-4)
    before = json.loads((tmp_path / "model" / "model.json").read_text())
    assert "\nmodel: " in programs.run(PROGRAM, *arguments, cwd=tmp_path, **kept)  # nothing is left to do
    assert json.loads((tmp_path / "model" / "model.json").read_text())["metrics"] == before["metrics"]


def test_a_model_of_lightgbm_is_gone_on_from(tmp_path: Path, tables: Path) -> None:
    programs.run(PROGRAM, *channels(tables), *LIGHT, "--num_round", "10", "--model_dir", "first", cwd=tmp_path)
    more = ("--num_round", "5", "--previous_model", "first")
    output = programs.run(PROGRAM, *channels(tables), *LIGHT, *more, cwd=tmp_path)
    assert [int(number) for number, _ in LINE.findall(output)] == [10, 11, 12, 13, 14]
    with programs.started(PROGRAM, *channels(tables), *more, cwd=tmp_path) as job:
        assert job.finish() == [1]
    assert "its library is lightgbm, not xgboost" in job.errors[0]


def test_a_table_that_is_too_small_to_split_still_gives_a_model(tmp_path: Path) -> None:
    features: Any = numpy.arange(8.0).reshape(4, 2)
    write_csv(tmp_path / "train" / "a.csv", features, numpy.arange(4.0))
    output = programs.run(PROGRAM, "--train", "train", *LIGHT, "--num_round", "12", cwd=tmp_path)
    assert len(measured(output)) == 12
